# SPDX-License-Identifier: Apache-2.0
"""What both kinds of functions share: the pass's name, its log, and where the layout is written."""

from __future__ import annotations

import logging

PASS = "GMEMAllocate"
"""What users call the pass."""

ATTRIBUTE = "tvm_ext.gmem"
"""The function attribute that holds the placement, as plain data."""

SCOPE = "global"
"""The memory that is planned."""

LOGGER = logging.getLogger(f"tvm_ext.{PASS}")
"""Says at level INFO which tensors are not placed, and why."""
