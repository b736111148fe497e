# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules are those that plans of memory are tested on, networks the benchmark's."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _folder in ("tests/gmem", "benchmarks"):
    sys.path.append(str(ROOT / _folder))
