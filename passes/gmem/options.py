# SPDX-License-Identifier: Apache-2.0
"""Options of `GMEMAllocate`, and the global memory that they describe.

A device takes tensors at offsets, or each at the start of a whole slot. Kernels built by TVM take
no offset, so the virtual machine makes it a part of the pointer, or copies the tensor where it
cannot (`vm.builtin.ensure_zero_offset` in TVM's ``src/runtime/vm/builtin.cc``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from passes.driver import Solver
from passes.gmem.planning.gmem_layout import GMEM, check_alignment, check_base
from passes.gmem.planning.slot_search import plan_slots
from passes.ir import IRModule, Target, build_option, current_target, tir
from passes.pass_errors import error_context
from passes.planning import Budget, Plan, Problem, solve
from passes.relax import HOST, SCOPE, RelaxMemory, TensorGroup, read_relax_memory
from target_hw.memory import MemoryHierarchy, MemoryScope

PASS = "GMEMAllocate"  # The name that users call the pass by
ATTRIBUTE = "tvm_ext.gmem"  # The function attribute that holds the placement, as plain data

LOGGER = logging.getLogger(f"tvm_ext.{PASS}")
"""Says at level INFO which tensors are not placed, and why."""

RUNTIME_ALIGNMENT = 64
"""Bytes: TVM's ``kAllocAlignment``, to which tensors are aligned where no chip is described. Of a
tensor at any other offset, the Relax VM would hand kernels a copy."""

HOST_KINDS = ("llvm", "c")  # Targets on which the virtual machine and its tensors have one memory

CUDA_GRAPH = "relax.backend.use_cuda_graph"  # TVM's option for `RewriteCUDAGraph`

BEST = "best"
"""The planner whose plans may take any form: one piece or several. Others decide for themselves."""

SLOT_NODES = 200_000  # Placements that the planner of whole slots may try in a module
SHORT_NODES = 10_000  # Placements that a planner may try where a plan is known already

OFFSETS_FACT = "offsets"
"""A target's fact of its ``global`` memory: 1 where a tensor at an offset is free, else 0."""

IN_KERNELS = "kernel"  # The value of `offsets` with which kernels add them to their indices
LEAST_BINDING = 1 << 27  # Bytes of a buffer that Vulkan and WebGPU let a kernel see at least


@dataclass(frozen=True)
class Form:
    """The reason for which tensors may, or may not, stand at offsets other than 0."""

    offsets: bool
    reason: str  # In a few words
    most: int | None = None  # Bytes of a piece with offsets, at most

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{'offsets' if self.offsets else 'whole slots'}: {self.reason}"


_BY_KIND = {
    "llvm": Form(True, "on a CPU a tensor at an offset is a pointer"),
    "c": Form(True, "on a CPU a tensor at an offset is a pointer"),
    "cuda": Form(True, "TVM's runtime for CUDA adds an offset to a pointer"),
    "hexagon": Form(True, "the virtual machine folds an offset into a pointer on Hexagon"),
    "ext_dev": Form(True, "a chip of its own takes addresses"),
    "rocm": Form(False, "TVM's runtime for ROCm adds nothing to pointers"),
    "opencl": Form(False, "a cl_mem is no pointer"),
    "vulkan": Form(False, "a VkBuffer is no pointer"),
    "metal": Form(False, "an MTLBuffer is no pointer"),
    "webgpu": Form(False, "a GPUBuffer is no pointer"),
}
"""By kind of target; the reasons are ``SupportsDevicePointerArithmeticsOnHost`` of TVM's devices,
and ``StorageObj::AllocTensor`` for Hexagon."""


def form_for(target: Target | None, offsets: bool | str | None) -> Form:
    """Return the form for tensors of a target; `offsets` is what the user says, if anything."""
    kind = "llvm" if target is None else str(target.kind.name)
    if offsets != IN_KERNELS:
        if offsets is not None:
            return Form(bool(offsets), "as asked for")
        described = described_memory(target)
        facts = {} if described is None else dict(described.facts)
        if OFFSETS_FACT in facts:
            return Form(bool(facts[OFFSETS_FACT]), "the target's description says so")
        return _BY_KIND.get(kind, Form(False, f"nothing is known of targets of kind {kind!r}"))
    if kind == "webgpu":
        raise ValueError(
            "offsets='kernel' is not possible for webgpu: a kernel binds whole buffers, and none "
            "may be both read and written in one dispatch"
        )
    if kind not in _BY_KIND or kind == "ext_dev":  # Kernels of a chip of its own are not ours.
        return Form(False, f"nothing is known of kernels for targets of kind {kind!r}")
    most = None
    if target is not None and not _BY_KIND[kind].offsets:
        most = int(target.attrs.get("max_storage_buffer_range", LEAST_BINDING))
    return Form(True, "kernels add them to their indices", most)


def described_memory(target: Target | None) -> MemoryScope | None:
    """Return what a target says of its global memory, if it says anything."""
    return next((memory for memory in _memories_of(target) if memory.name == SCOPE), None)


def _memories_of(target: Target | None) -> MemoryHierarchy:
    if target is None or target.features.memory is None:
        return MemoryHierarchy()
    return MemoryHierarchy.from_target(target)


@dataclass(frozen=True)
class GMEMOptions:
    """Options of `GMEMAllocate`; the parameters of the pass define each field."""

    alignment: int | None = None
    base: int | None = None
    target: Target | None = None
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None
    offsets: bool | str | None = None
    weights: bool = False

    def __post_init__(self) -> None:
        if self.alignment is not None:
            check_alignment(self.alignment)
        if self.base is not None:
            check_base(self.base)
        if self.offsets not in (None, IN_KERNELS) and not isinstance(self.offsets, bool):
            raise ValueError(f"offsets must be True, False or {IN_KERNELS!r}, got {self.offsets!r}")

    def read(self, mod: IRModule, variable: tir.GlobalVar) -> RelaxMemory:
        """Read one Relax function of a module."""
        alignment, in_kernels = self.gmem().offset_alignment, self.offsets == IN_KERNELS
        return read_relax_memory(
            mod,
            variable,
            self.upper_bounds,
            alignment,
            self.keeps_storages,
            in_kernels,
            self.host_device(),
        )

    def form(self, mod: IRModule, group: TensorGroup) -> Form:
        """Return in which form a group's device takes its plan."""
        if group.textures:
            return Form(False, "textures take no offset")
        if group.scope != SCOPE:
            return Form(False, f"nothing is known of offsets in {group.scope!r}")
        if self.offsets == IN_KERNELS and (group.unit is not None or self.has_addresses()):
            return Form(False, "kernels add constant offsets alone")
        if group.device == HOST:
            return form_for(None, None if self.offsets == IN_KERNELS else self.offsets)
        devices = mod.global_infos.get("vdevice", ())
        known = group.device < len(devices)
        return form_for(devices[group.device].target if known else self._target(), self.offsets)

    @property
    def keeps_storages(self) -> bool:
        """Whether storages of constant size are kept from call to call, for CUDA graphs."""
        return bool(build_option(CUDA_GRAPH))

    def has_addresses(self) -> bool:
        """Return whether the chip or the caller gives addresses: activations then are a region."""
        return described_memory(self._target()) is not None or self.base is not None

    def host_device(self) -> int | None:
        """Return the device whose memory is the virtual machine's own, if there is one."""
        target = self._target()
        return 0 if target is None or target.kind.name in HOST_KINDS else None

    def memories(self) -> tuple[MemoryScope, ...]:
        """Return the memories that the target describes for tensors, the fastest first; or none."""
        return _memories_of(self._target()).for_tensors()

    def gmem(self) -> GMEM:
        """Return the global memory that the options and the target describe."""
        target = self._target()
        scope = described_memory(target) or MemoryScope(SCOPE, alignment=RUNTIME_ALIGNMENT)
        alignment = scope.alignment if self.alignment is None else self.alignment
        runs_on_tvm = target is None or target.kind.name != "ext_dev"
        of_offsets = math.lcm(alignment, RUNTIME_ALIGNMENT) if runs_on_tvm else alignment
        facts = dict(scope.facts)
        base = facts.get("weight_base", scope.base) if self.base is None else self.base
        with error_context(PASS):
            return GMEM(scope, alignment, of_offsets, base, facts.get("activation_base"))

    def _target(self) -> Target | None:
        return self.target or current_target()


class Solvers:
    """Planners as one run of the pass asks them: equal problems once, and slots within one budget.

    Functions of one module often have equal tensors, such as those that differ in their weights.
    """

    def __init__(self, planner: str, options: GMEMOptions) -> None:
        self.planner, self._budget = planner, options.budget
        limits = options.budget or Budget()
        self._slot_nodes = min(limits.nodes, SLOT_NODES)
        self._again = replace(limits, nodes=min(limits.nodes, SHORT_NODES))
        self._known: dict[Hashable, tuple[Plan, tuple[tuple[int, ...], ...]]] = {}

    def offsets(self, problem: Problem) -> Plan:
        """Return the plan of the planner that the user names."""
        return self._once("offsets", problem, lambda one: solve(one, self.planner, self._budget))

    def again(self, problem: Problem) -> Plan:
        """Return a plan where another one is known already, and this may be better."""
        return self._once("again", problem, lambda one: solve(one, BEST, self._again))

    def slots(self, problem: Problem) -> Plan:
        """Return a plan in whole slots."""
        return self._once("slots", problem, self._in_slots)

    def _in_slots(self, problem: Problem) -> Plan:
        plan, _ = plan_slots(problem, replace(self._again, nodes=max(self._slot_nodes, 1)))
        self._slot_nodes -= plan.nodes
        return plan

    def _once(self, kind: str, problem: Problem, solver: Solver) -> Plan:
        if problem.in_place or problem.separations or problem.penalties:
            return solver(problem)
        buffers = tuple(replace(buffer, name="") for buffer in problem.buffers)
        key = kind, problem.memory, buffers
        names = [buffer.name for buffer in problem.buffers]
        if key not in self._known:
            plan = solver(problem)
            if len(plan.offsets) != len(names):  # It has not found a place for each.
                return plan
            self._known[key] = plan, tuple(plan.offsets[name] for name in names)
        plan, offsets = self._known[key]
        return replace(plan, offsets=dict(zip(names, offsets, strict=True)))
