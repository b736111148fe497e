# SPDX-License-Identifier: Apache-2.0
"""The scripts that write tables into pages can be imported by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
