"""What `GMEMAllocate` is told, and the global memory that this describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm.target import Target

from passes.gmem.names import PASS, SCOPE
from passes.placement import Solver, naming
from passes.planning import Budget, solve
from passes.planning.sophgo.gmem_layout import GMEM
from target_hw.memory import MemoryHierarchy, MemoryScope

RUNTIME_ALIGNMENT = 64
"""Bytes: TVM's ``kAllocAlignment``. The Relax VM hands kernels a pointer to a tensor at an offset
that is a multiple of this; at any other offset it would hand them a copy."""

DEFAULT_ALIGNMENT = RUNTIME_ALIGNMENT
"""Bytes: what placed tensors are aligned to where no chip is described."""


@dataclass(frozen=True)
class GMEMOptions:
    """What `GMEMAllocate` is told; the parameters of the pass say what each field means."""

    alignment: int | None = None
    base: int | None = None
    target: Target | None = None
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None

    def solver(self, planner: str) -> Solver:
        """Return what asks a planner, within the budget."""
        return lambda problem: solve(problem, planner, self.budget)

    def gmem(self) -> GMEM:
        """Return the global memory that the options and the target describe."""
        target = self.target or Target.current(allow_none=True)
        scope = MemoryScope(SCOPE, alignment=DEFAULT_ALIGNMENT)
        if target is not None and target.features.memory is not None:
            memories = MemoryHierarchy.from_target(target)
            if SCOPE in memories:
                scope = memories[SCOPE]
        alignment = scope.alignment if self.alignment is None else self.alignment
        runs_on_tvm = target is None or target.kind.name != "ext_dev"
        facts = dict(scope.facts)
        base = facts.get("weight_base", scope.base) if self.base is None else self.base
        with naming(PASS):
            return GMEM(
                scope,
                alignment,
                math.lcm(alignment, RUNTIME_ALIGNMENT) if runs_on_tvm else alignment,
                base,
                facts.get("activation_base"),
            )
