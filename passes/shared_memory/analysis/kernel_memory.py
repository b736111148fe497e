# SPDX-License-Identifier: Apache-2.0
"""From a kernel's statements to the steps that its threads take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from passes.ir import (
    AllocationUses,
    FunctionAccesses,
    LinearAccess,
    PrimFunc,
    Uniformity,
    find_accesses,
    find_linear_access,
    nodes_in,
    outermost_threads,
    tir,
    unique_name,
)
from passes.ir.operators import (
    BARRIERS,
    COMMIT_GROUP,
    STORAGE_SYNC,
    WAIT_ALL,
    WAIT_GROUP,
    buffer_data_var,
    is_predicated,
    operator_name,
)
from passes.prim_func import AllocationNote
from passes.shared_memory.analysis.buffer_uses import (
    alignment_of_addresses,
    has_scattered_vectors,
    is_handed_on,
)
from passes.shared_memory.analysis.own_elements import OwnElements
from passes.shared_memory.planning.epochs import (
    Effect,
    Event,
    EventBranch,
    EventLoop,
    SharedBuffer,
    Step,
    ThreadBlock,
    events_in,
)

SCOPES = ("shared", "shared.dyn")
"""The storage scopes that are planned, in this order: the first is there before a launch."""

_COMMIT, _WAIT, _IN_FLIGHT = (
    "async_commit_queue_scope",
    "async_wait_queue_scope",
    "async_wait_inflight_count",
)
_ASYNCHRONOUS = "async_scope"


@dataclass(frozen=True, eq=False)
class KernelMemory:
    """The accesses of one kernel of a function to the memory that its threads share."""

    owner: tir.Attribute  # The outermost thread extent, in whose body memory is allocated
    kernels: dict[str, ThreadBlock]  # By storage scope, for scopes in which something is allocated
    allocations: dict[str, AllocationUses]  # By the names in `kernels`
    # The sequence of statements and the index in it at which each place of the kernel stands.
    places: list[tuple[tir.Sequence, int]]
    statements: list[tir.Statement]  # Those of its events, by number
    left_alone: list[AllocationNote]  # The allocations that keep memory of their own
    bytes_left_alone: dict[str, int]  # Bytes of these, as far as they are known, by storage scope


def find_shared_memory(
    func: PrimFunc, *, by_address_space: bool = False
) -> tuple[KernelMemory, ...]:
    """Read off a function what the threads of its kernels do with shared memory; () without any.

    The function is flat and has its barriers, as after `ThreadSync`. ValueError is raised when it
    holds what is not known, or a dynamic allocation cannot be planned with others: a kernel has one
    at most. `by_address_space` says whether pointers of its target say which memory they point to:
    TVM leaves that out where it casts one to gather a vector from an array of another type.
    """
    for op in nodes_in(func.body, tir.Attribute):
        if op.attr_key == "thread_extent" and not isinstance(op.node, tir.ThreadAxis):
            raise ValueError(f"the extent of thread {op.node} has no tag")
    owners = outermost_threads(func.body)
    if not owners:
        return ()
    access = find_linear_access(func)
    # Copies may go on that a function of the module begins.
    called = frozenset(str(var.name_hint) for var in nodes_in(func.body, tir.GlobalVar))
    accesses = find_accesses(access, called)
    names: set[str] = set()
    kernels = tuple(_read(owner, access, accesses, names, by_address_space) for owner in owners)
    return kernels if any(memory.kernels for memory in kernels) else ()


def _read(
    owner: tir.Attribute,
    access: LinearAccess,
    accesses: FunctionAccesses,
    names: set[str],
    by_address_space: bool,
) -> KernelMemory:
    inside = [
        use
        for use in accesses.of
        if use.scope in SCOPES and any(each.op.same_as(owner) for each in use.made[0])
    ]
    left_alone: list[AllocationNote] = []
    left = dict.fromkeys(SCOPES, 0)

    def leave(use: AllocationUses, reason: str) -> None:
        alloc, scope = use.alloc, use.scope
        if scope != "shared" and len(inside) > 1:
            raise ValueError(f"buffer {alloc.name!r} in {scope}: {reason}")
        left_alone.append(AllocationNote(alloc.name, scope, reason))
        left[scope] += alloc.const_nbits // 8

    allocations: dict[str, AllocationUses] = {}
    for use in inside:
        reason = _reason_to_leave(use)
        if reason is None:
            allocations[unique_name(use.alloc.name, names)] = use
        else:
            leave(use, reason)
    walk = _KernelWalk(access, accesses, owner, allocations)
    # One buffer needs no barrier against others.
    steps = tuple(walk.steps(owner, True)) if len(allocations) > 1 else ()

    if by_address_space:
        for scope in SCOPES:
            own = {name: use for name, use in allocations.items() if use.scope == scope}
            types = {dtype for use in own.values() for dtype in use.dtypes}
            has_vectors = any(map(has_scattered_vectors, own.values()))
            has_vectors |= any(dtype.lanes != 1 for dtype in types)
            if len(own) > 1 and len(types) > 1 and has_vectors:
                for name in own:
                    leave(allocations.pop(name), "TVM writes no vectors in one array of all types")
    numbers = {e.number for a in allocations.values() for e in a.made[0]}
    jumps = not numbers.isdisjoint(accesses.jumps)
    own_elements = OwnElements(owner, accesses, allocations, walk.statements, walk.with_barriers)
    operators = {operator_name(call.op) for call in nodes_in(owner, tir.Call)}
    buffers: dict[str, list[SharedBuffer]] = {scope: [] for scope in SCOPES}
    for name, use in allocations.items():
        alignment = use.alignment()
        if is_handed_on(use):
            alignment = math.lcm(alignment, alignment_of_addresses(operators, use.buffer))
        is_kept = jumps or any(each.is_kept for each in use.accesses)
        buffer = SharedBuffer(name, use.alloc.const_nbits // 8, alignment, is_kept)
        buffers[use.scope].append(buffer)
    kernels = {
        s: ThreadBlock(s, tuple(own), steps, own_elements) for s, own in buffers.items() if own
    }
    return KernelMemory(owner, kernels, allocations, walk.places, walk.statements, left_alone, left)


def _reason_to_leave(uses: AllocationUses) -> str | None:
    """Say why an allocation keeps memory of its own, if it does."""
    alloc = uses.alloc
    if alloc.num_physical_dimensions != 1:
        return f"it has {alloc.num_physical_dimensions} dimensions"
    if not alloc.const_nbits:
        return "its size is known at run time only"
    if any(dtype.bits % 8 for dtype in uses.dtypes):
        return "its elements are no whole bytes"
    if alloc.is_volatile:
        return "it is volatile"
    if len(uses.buffer.ty.allocated_addr):
        return "it has an address of its own"
    if not uses.has_movable_indices:
        return "its indices are of a type that wraps"
    return None


def _is_of_all(step: Step) -> bool:
    """Return whether a barrier before a step would do nothing: it is one, or an allocation."""
    return isinstance(step, Event) and step.what in (Effect.BARRIER, Effect.BEGIN)


class _KernelWalk:
    """Goes through a kernel's statements, and makes steps of them."""

    def __init__(
        self,
        access: LinearAccess,
        accesses: FunctionAccesses,
        owner: tir.Attribute,
        allocations: Mapping[str, AllocationUses],
    ) -> None:
        self._access, self._accesses, self._owner = access, accesses, owner
        self._names = {use.index: name for name, use in allocations.items()}
        # The handles of the loops through which buffers carry a value, by name.
        self._carried = {
            name: use.carrying.__chandle__()
            for name, use in allocations.items()
            if use.carrying is not None
        }
        self.places: list[tuple[tir.Sequence, int]] = []
        self.statements: list[tir.Statement] = []
        self._loops = 0
        self._copying = False
        # Whether each round of a loop has a barrier, by its handle; wherever that loop stands.
        self.with_barriers: dict[int, bool] = {}
        counts = Counter(op.__chandle__() for op in nodes_in(owner, tir.Sequence))
        self._repeated = {key for key, times in counts.items() if times > 1}

    @cached_property
    def _uniform(self) -> Uniformity:
        return Uniformity(self._owner, self._access, self._accesses)

    def _name_of(self, buffer: tir.Var) -> str | None:
        """Return the name of the planned buffer whose memory a variable names, if it is one."""
        known = self._access.buffers.get(buffer.__chandle__())
        return None if known is None else self._names.get(known.root)

    def steps(self, op: Any, here: bool) -> Iterator[Step]:
        """Yield the steps of a statement; `here` says whether all threads come by it together."""
        if isinstance(op, tir.Sequence):
            is_single = here and op.__chandle__() not in self._repeated
            for at, inner in enumerate(op.seq):
                steps = tuple(self.steps(inner, here))
                if steps and is_single and not _is_of_all(steps[0]):
                    self.places.append((op, at))
                    yield Event(Effect.PLACE, number=len(self.places) - 1, loops=self._loops)
                yield from steps
        elif isinstance(op, tir.Attribute):
            yield from self._steps_of_attr(op, here)
        elif isinstance(op, tir.Loop):
            alike = here and self._uniform.loops_alike(op)
            is_run = isinstance(op.extent, tir.IntConstant) and op.extent.value > 0
            yield from self._loop(op, alike, not is_run)
        elif isinstance(op, tir.While):
            alike = here and self._uniform.is_uniform(op.condition)
            yield from self._loop(op, alike, True)
        elif isinstance(op, tir.If):
            yield from self._events(op)
            inside = here and self._uniform.is_uniform(op.condition)
            arms = (op.then_case, op.else_case)
            yield EventBranch(
                tuple(() if arm is None else tuple(self.steps(arm, inside)) for arm in arms)
            )
        elif isinstance(op, tir.Allocation):
            name = self._name_of(op.buffer)
            if name is not None and name not in self._carried:
                yield Event(Effect.BEGIN, (name,), number=self._number(op))
        elif isinstance(op, tir.Evaluation):
            yield from self._steps_of_call(op, here)
        elif isinstance(op, (tir.Store, tir.Binding, tir.Assertion)):
            yield from self._events(op)
        elif isinstance(op, tir.Declaration):
            # Another name of a buffer is no use of it, but a computed address may be kept.
            if buffer_data_var(op.data) is None:
                yield from self._events(op)
        else:
            raise ValueError(f"it holds a {type(op).__name__}, of which nothing is known")

    def _loop(self, op: tir.Loop | tir.While, here: bool, may_skip: bool) -> Iterator[Step]:
        """Yield the steps of a loop; generated code reads its bounds again before each round."""
        events = self._events(op)
        # A buffer that carries a value from round to round is there before the first.
        begun = tuple(n for n, loop in self._carried.items() if loop == op.__chandle__())
        if begun:
            yield Event(Effect.BEGIN, begun, number=self._number(op))
        yield from events
        self._loops += 1
        body = tuple(self.steps(op.body, here))
        self._loops -= 1
        key, has_one = op.__chandle__(), any(e.what is Effect.BARRIER for e in events_in(body))
        self.with_barriers[key] = has_one and self.with_barriers.get(key, True)
        yield EventLoop((*body, *events), may_skip)

    def _steps_of_attr(self, op: tir.Attribute, here: bool) -> Iterator[Step]:
        yield from self._events(op)
        was_copying = self._copying
        self._copying |= op.attr_key == _ASYNCHRONOUS
        if op.attr_key == _WAIT and isinstance(op.body, tir.Attribute):
            count = op.body.value
            if op.body.attr_key == _IN_FLIGHT and isinstance(count, tir.IntConstant):
                yield Event(Effect.WAIT, pending=int(count.value))
        yield from self.steps(op.body, here)
        if op.attr_key == _COMMIT:
            yield Event(Effect.COMMIT)
        self._copying = was_copying

    def _steps_of_call(self, op: tir.Evaluation, here: bool) -> Iterator[Step]:
        call = op.value
        # A call under a predicate may be no barrier, and no wait.
        name = operator_name(call.op) if type(call) is tir.Call and not is_predicated(call) else ""
        is_sync = name == STORAGE_SYNC and str(getattr(call.args[0], "value", "")) in SCOPES
        if is_sync or name in BARRIERS:
            if here:
                yield Event(Effect.BARRIER, number=self._number(op))
            return
        yield from self._events(op)
        if name == COMMIT_GROUP:
            yield Event(Effect.COMMIT)
        elif name == WAIT_ALL:
            yield Event(Effect.WAIT, pending=-1)
        elif name == WAIT_GROUP:
            counts = [arg for arg in call.args if isinstance(arg, tir.IntConstant)]
            if len(counts) == 1:
                yield Event(Effect.WAIT, pending=int(counts[0].value))

    def _number(self, op: tir.Statement) -> int:
        self.statements.append(op)
        return len(self.statements) - 1

    def _events(self, op: tir.Statement) -> list[Event]:
        """Return what a statement's expressions do, and that it stores to a buffer."""
        events: dict[Effect, dict[str, None]] = {Effect.READ: {}, Effect.WRITE: {}, Effect.COPY: {}}
        for access in self._accesses.by_statement.get(op.__chandle__(), ()):
            name = self._name_of(access.buffer)
            if name is None:
                continue
            if access.reads:
                events[Effect.READ][name] = None
            is_copy = self._copying and type(access.op) is tir.Store
            if access.writes and not is_copy:
                events[Effect.WRITE][name] = None
            if is_copy or access.is_copied:
                events[Effect.COPY][name] = None
        return [
            Event(what, tuple(names), number=self._number(op))
            for what, names in events.items()
            if names
        ]
