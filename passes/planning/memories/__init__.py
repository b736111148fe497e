# SPDX-License-Identifier: Apache-2.0
"""Several memories: which buffer lies in which, at what offset, so that the fewest bytes move.

`planner.py` is imported when such a problem is first solved.
"""

from passes.planning.memories.memories_plan import Copy, MemoriesPlan, Stay
from passes.planning.memories.traffic import MemoriesProblem, Traffic

__all__ = ["Copy", "MemoriesPlan", "MemoriesProblem", "Stay", "Traffic"]
