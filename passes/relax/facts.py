# SPDX-License-Identifier: Apache-2.0
"""Memory of a Relax function, as plain facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from passes.ir import Bound, IRModule
from passes.planning import Buffer, LiveRange, Problem
from passes.relax import rx
from target_hw.memory import MemoryScope

SCOPE = "global"  # The memory that is planned, on each device
MAIN_DEVICE = 0  # The index of the device whose memory has addresses
PLANS_RESULTS = "relax.memory_plan_dynamic_func_output"
"""The function attribute by which `StaticPlanBlockMemory` gives each tensor of symbolic shape a
storage of the size that it has at most, results too, and which it takes away."""

HOST = -1  # The index that TVM's runtime reserves for the host

Path = tuple[tuple[int, int], ...]
"""The branches that lead to a binding: the position of each `if`, and which branch was taken."""

Branches = Mapping[int, tuple[LiveRange, LiveRange]]
"""By the position of each `if`, the positions of its branch for true and of that for false.

Positions number the bindings in program order: an `if`, its true branch, its false branch.
"""


@dataclass(frozen=True)
class BufferBindings:
    """The bindings that make and touch the tensor that a buffer stands for."""

    tensor: str  # The name of the binding that allocates it
    path: Path  # The branches that it stands in; empty for a tensor that is returned
    made_at: int  # The position of that binding
    touched_at: tuple[int, ...]  # The positions that read or write it, sorted
    is_kept: bool = False  # Whether the virtual machine keeps its memory until the function ends
    is_result: bool = False  # Whether the function returns it
    # Whether it gets a storage of its own, as large as it may be, where it shares none: under
    # `PLANS_RESULTS`, so that the pool has one block for results of all sizes.
    has_storage: bool = False


@dataclass(frozen=True, eq=False)
class TensorGroup:
    """Tensors that may share memory."""

    device: int  # The index of the device that they are on
    # The product of symbolic dimensions without an upper bound that their sizes are multiples of;
    # None where sizes are constant.
    unit: Any | None
    problem: Problem  # A buffer is one tensor; sizes are bytes, or bytes for each of the unit
    # Tensors that the function returns: from their first touch on they need memory of their own.
    returned: tuple[Buffer, ...] = ()
    # Tensors that share with no others in any case: what something unknown may keep, and returned
    # ones that a branch makes or whose storage is only as large as the call needs.
    alone: tuple[Buffer, ...] = ()
    scope: str = SCOPE  # In which the pieces are allocated
    dtype: str = "uint8"  # Of the pieces' elements
    textures: bool = False  # Whether some tensors are textures, which are views of pieces
    uses: Mapping[str, BufferBindings] = field(default_factory=dict)  # Also of those returned

    @property
    def is_main(self) -> bool:
        """Whether these are the constant sizes on the main device, which have addresses."""
        return self.device == MAIN_DEVICE and self.unit is None and self.scope == SCOPE

    @property
    def allocated(self) -> tuple[Buffer, ...]:
        """The buffers that can share a piece."""
        return (*self.problem.buffers, *self.returned)

    @property
    def every(self) -> tuple[Buffer, ...]:
        """All tensors."""
        return (*self.allocated, *self.alone)


@dataclass(frozen=True)
class LeftToRuntime:
    """A tensor that is not planned, and why."""

    name: str  # The name of the binding, or of the parameter
    reason: str  # In a few words


@dataclass(frozen=True)
class Weight:
    """A tensor that is there before the function runs, and stays."""

    name: str  # That of the parameter, as ``p[0]`` for a field of a tuple; or ``constant_0``, ...
    size: int  # Bytes
    data: int | None = None  # Tells one constant's data from another's; None for a parameter


@dataclass(frozen=True)
class KernelUses:
    """Buffers that kernels are given, and those that must stand at the start of their memory."""

    # By handle of the variable that a call is bound to, the buffer of each argument; empty for an
    # argument that is not a buffer, or that the kernel does not take at an offset.
    calls: Mapping[int, tuple[str, ...]]
    from_start: frozenset[str]


@dataclass(frozen=True, eq=False)
class RelaxMemory:
    """The memory to plan in one Relax function."""

    name: str  # Its global name
    mod: IRModule  # Its module
    func: rx.Function  # The function that was read
    groups: tuple[TensorGroup, ...]  # The main one first, also where it is empty
    left: tuple[LeftToRuntime, ...]  # In program order
    weights: tuple[Weight, ...]  # Parameters first, then constants
    bounds: tuple[Bound, ...]  # Of the symbolic dimensions that the sizes of the tensors rest on
    variables: tuple[str, ...]  # The names of the symbolic dimensions of the signature, sorted
    bindings: tuple[str, ...]  # The name of the binding at each position
    handles: tuple[int, ...]  # The handle of its variable
    calls: tuple[str, ...]  # Relax functions of the module that it calls or hands on, sorted
    hands_on: tuple[str, ...]  # Those of them that it hands on as values, sorted
    calls_unknown: bool  # Whether it calls something that may call any function that was handed on
    allocates: bool  # Whether it allocates memory of its own, which stays as it is
    allocations: int  # Number of its ``R.builtin.alloc_tensor``, planned or not
    # The results of operators that have yet to be lowered; they stand in `left` too.
    unlowered: tuple[LeftToRuntime, ...]
    keeps_storages: bool  # Whether storages of constant size are kept from call to call
    kernel_arguments: KernelUses | None  # None where no offsets go into kernels
    buffer_of: Mapping[int, str]  # By handle of the variable of an allocating binding
    branches: Branches
    has_all_allocations: bool  # Whether `groups` has all that a call is known to allocate
    may_be_kept: str  # A tensor that something unknown may keep, and why; empty if there is none
    plans_results: bool  # Whether it has the attribute `PLANS_RESULTS`
    # Whether all of its parameters are weights: it runs once, and what it returns stays.
    transforms_weights: bool

    @property
    def main(self) -> TensorGroup:
        """The tensors of constant size on the main device."""
        return self.groups[0]

    def in_memory(self, scope: MemoryScope) -> RelaxMemory:
        """Return the same with the memory that the main group is to be placed in."""
        main = replace(self.main, problem=replace(self.main.problem, memory=scope))
        return replace(self, groups=(main, *self.groups[1:]))

    def leaving(self, planned: Collection[str], reason: str) -> RelaxMemory:
        """Return the same with all buffers but the named ones left to the runtime."""
        groups, left = [], []
        for group in self.groups:
            own = group.problem.buffers
            kept = tuple(one for one in own if one.name in planned)
            others = tuple(one for one in own if one.name not in planned)
            problem = replace(group.problem, buffers=kept)
            groups.append(replace(group, problem=problem, alone=(*group.alone, *others)))
            left += [LeftToRuntime(group.uses[one.name].tensor, reason) for one in others]
        return replace(self, groups=tuple(groups), left=(*self.left, *left))
