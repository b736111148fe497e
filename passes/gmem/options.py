# SPDX-License-Identifier: Apache-2.0
"""What `GMEMAllocate` is told, and the global memory that this describes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext
from tvm.target import Target

from passes.driver import Solver, error_context
from passes.gmem.forms import IN_KERNELS, TEXTURES, Form, described_memory, form_for
from passes.gmem.planning.gmem_layout import GMEM
from passes.gmem.planning.slot_search import plan_slots
from passes.gmem.planning.slots import in_slots
from passes.planning import Budget, Plan, Problem, solve
from passes.relax import SCOPE, RelaxMemory, TensorGroup, read_relax_memory
from target_hw.memory import MemoryHierarchy, MemoryScope

PASS = "GMEMAllocate"  # What users call the pass
ATTRIBUTE = "tvm_ext.gmem"  # The function attribute that holds the placement, as plain data

LOGGER = logging.getLogger(f"tvm_ext.{PASS}")
"""Says at level INFO which tensors are not placed, and why."""

RUNTIME_ALIGNMENT = 64
"""Bytes: TVM's ``kAllocAlignment``, to which tensors are aligned where no chip is described. The
Relax VM hands kernels a pointer to a tensor at an offset that is a multiple of this; at any other
offset it would hand them a copy."""

HOST_KINDS = ("llvm", "c")  # Targets on which the virtual machine and its tensors have one memory

CUDA_GRAPH = "relax.backend.use_cuda_graph"
"""The option of TVM's pass context by which `RewriteCUDAGraph` does its work."""

BEST = "best"
"""The planner whose plans may take any form: one piece or several. Others decide for themselves."""

SLOT_NODES = 100_000  # Placements that the planner of whole slots may try: a second or two

SHORT_NODES = 20_000
"""Placements that a planner may try where a plan is known already and another may be better."""


@dataclass(frozen=True)
class GMEMOptions:
    """What `GMEMAllocate` is told; the parameters of the pass say what each field means."""

    alignment: int | None = None
    base: int | None = None
    target: Target | None = None
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None
    offsets: bool | str | None = None
    weights: bool = False

    def memories(self) -> tuple[MemoryScope, ...]:
        """Return the memories that the target describes for tensors, the fastest first.

        Empty where there is one.
        """
        target = self._target()
        if target is None or target.features.memory is None:
            return ()
        return MemoryHierarchy.from_target(target).for_tensors()

    def read(self, mod: IRModule, variable: GlobalVar) -> RelaxMemory:
        """Read one Relax function of a module."""
        return read_relax_memory(
            mod,
            variable,
            self.upper_bounds,
            self.gmem().offset_alignment,
            self.keeps_storages,
            self.offsets == IN_KERNELS,
        )

    def solver(self, planner: str) -> Solver:
        """Return what asks a planner, within the budget."""
        return lambda problem: solve(problem, planner, self.budget)

    def short_solver(self) -> Solver:
        """Return what asks for a second plan, which has to pay off soon."""
        budget = self._at_most(SHORT_NODES)
        return lambda problem: solve(problem, BEST, budget)

    def _at_most(self, nodes: int) -> Budget:
        budget = self.budget or Budget()
        return replace(budget, nodes=min(budget.nodes, nodes))

    def slot_solver(self, planner: str) -> Solver:
        """Return what plans whole slots: the planner, where its plan is of that form."""
        budget = self._at_most(SLOT_NODES)

        def solver(problem: Problem) -> Plan:
            if planner != BEST:
                plan = solve(problem, planner, self.budget)
                if in_slots(problem, plan) is not None:
                    return plan
                text = "%s: the plan of %r has tensors at offsets, so slots are planned"
                LOGGER.info(text, problem.name, planner)
            return plan_slots(problem, budget).plan

        return solver

    def form(self, mod: IRModule, group: TensorGroup) -> Form:
        """Return in which form a group's device takes its plan."""
        if group.textures:
            return TEXTURES
        devices = mod.global_infos.get("vdevice", ())
        if self.offsets == IN_KERNELS and (group.unit is not None or self.has_addresses()):
            return Form(False, "kernels add constant offsets alone")
        known = group.device < len(devices)
        return form_for(devices[group.device].target if known else self._target(), self.offsets)

    @property
    def keeps_storages(self) -> bool:
        """Whether storages of constant size are kept from call to call, for CUDA graphs."""
        return bool(PassContext.current().config.get(CUDA_GRAPH, False))

    def has_addresses(self) -> bool:
        """Whether the chip or the caller says where the memory is: activations are one region."""
        return described_memory(self._target()) is not None or self.base is not None

    def target_kind(self) -> str:
        """Return the kind of target that tensors are on; a CPU where none is named."""
        target = self._target()
        return "llvm" if target is None else str(target.kind.name)

    def _target(self) -> Target | None:
        return self.target or Target.current(allow_none=True)

    def gmem(self) -> GMEM:
        """Return the global memory that the options and the target describe."""
        target = self._target()
        scope = described_memory(target) or MemoryScope(SCOPE, alignment=RUNTIME_ALIGNMENT)
        alignment = scope.alignment if self.alignment is None else self.alignment
        runs_on_tvm = target is None or target.kind.name != "ext_dev"
        facts = dict(scope.facts)
        base = facts.get("weight_base", scope.base) if self.base is None else self.base
        with error_context(PASS):
            return GMEM(
                scope,
                alignment,
                math.lcm(alignment, RUNTIME_ALIGNMENT) if runs_on_tvm else alignment,
                base,
                facts.get("activation_base"),
            )


def check_bound_names(upper_bounds: Mapping[str, int], known: Iterable[str]) -> None:
    """Raise ValueError for an upper bound of a dimension that nothing has."""
    names = sorted(set(known))
    for name in sorted(upper_bounds.keys() - set(names)):
        there = f"there are: {', '.join(names)}" if names else "nothing here is symbolic"
        raise ValueError(f"the upper bound of {name!r} names no symbolic dimension; {there}")
