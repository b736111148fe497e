# SPDX-License-Identifier: Apache-2.0
"""Tests and benchmarks run the same networks, and measure them alike."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
