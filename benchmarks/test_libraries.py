# SPDX-License-Identifier: Apache-2.0
"""Importing this lets a benchmark import what it shares with the tests, from ``tests/lib``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "lib"))
