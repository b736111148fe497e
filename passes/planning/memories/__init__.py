# SPDX-License-Identifier: Apache-2.0
"""Several memories: which buffer lies in which, at what offset, so that the fewest bytes move.

`planner.py` is imported when such a problem is first solved: it needs numpy, and takes a while.
"""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names
from passes.planning.memories.memories_problem import MemoriesPlan, MemoriesProblem, Traffic

if TYPE_CHECKING:
    from passes.planning.memories.lacking import does_not_fit_in_memories
else:
    __getattr__ = lazy_names(__name__)
