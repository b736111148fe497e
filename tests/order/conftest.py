# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules are those that plans of memory are tested on."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/gmem"))
