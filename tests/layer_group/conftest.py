# SPDX-License-Identifier: Apache-2.0
"""Tests of a stage stand in its folder, tests of the whole pass here; they share what they make.

``analysis``: kernels and networks are read as they are. ``planning``: slices, time steps, addresses
and groups, of networks that know no TVM, run by a replay. ``rewrite``: groups as kernels, built and
compared bit for bit with their layers one by one.
"""

import sys
from pathlib import Path

for _folder in ("analysis", "planning", "rewrite"):
    sys.path.append(str(Path(__file__).parent / _folder))
