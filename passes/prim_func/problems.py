# SPDX-License-Identifier: Apache-2.0
"""From a function to planning problems: live ranges, sizes, alignments and memories of buffers.

One problem holds the allocations that compete for one storage scope at one *attach point*: the
whole function, or the parallel loop or thread extent whose every iteration or thread needs memory
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm.tirx import IntImm, PrimFunc

from passes.ir import NO_LOWER, Bound, bounds_at_entry, find_linear_access, stored_bits, unique_name
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind
from passes.planning import Buffer, LiveRange, Problem, common
from passes.prim_func.function_problems import (
    Allocation,
    AllocationNote,
    AttachedProblem,
    FunctionProblems,
    pairs_that_take_turns,
)
from passes.prim_func.in_place_pairs import InPlacePairs
from passes.prim_func.memory_uses import find_memory_uses
from passes.prim_func.problem_options import ProblemOptions as ProblemOptions
from passes.prim_func.thread_races import racing_pairs

MOST_SLOTS = 256  # Slots of one buffer beyond which it is refused: each is placed by itself

_REGISTER_BYTES = 4
_MULTI_BUFFER = "multi_buffer"


def find_problems(func: PrimFunc, options: ProblemOptions | None = None) -> FunctionProblems:
    """Read the planning problems off a function, flat, as it stands where `StorageRewrite` runs.

    An allocation's life begins before the first statement at its own level that touches it and ends
    after the last, so one made outside of a loop lives through the whole loop. One whose address
    may be kept, or that is volatile, lives as long as its attach point runs. ValueError is raised,
    naming the buffer, when the function is not one that can be planned.
    """
    return _ProblemBuilder(func, options or ProblemOptions()).build()


class _ProblemBuilder:
    """Builds the problems of one function from its access sequence and memory uses."""

    def __init__(self, func: PrimFunc, options: ProblemOptions) -> None:
        self._options = options
        self._target = func.attrs.get("target") if func.attrs else None
        self._access = find_linear_access(func)
        lasting = options.callers.lasting
        self._uses = find_memory_uses(self._access, lasting)
        self._bounds = bounds_at_entry(func, dict(options.upper_bounds))
        self._used_bounds: dict[int, Bound] = {}
        self._left_alone: list[AllocationNote] = []
        self._remarks: list[AllocationNote] = []
        self._owner_ranges = _owner_ranges(self._access.sequence)
        self._touched = _touched_ranges(self._access.sequence)
        self._whole = 0, max(len(self._access.sequence), 1)
        # The scopes in which a buffer of unknown size asks for an address.
        self._unknown = {
            str(alloc.scope)
            for index, alloc in enumerate(self._access.allocs)
            if options.addressed and self._is_used(index) and len(self._addresses(index))
            if self._size(index) is None
        }

    def build(self) -> FunctionProblems:
        groups: dict[tuple[int | None, str], dict[str, tuple[Buffer, Allocation]]] = {}
        names: set[str] = set()
        for index, alloc in enumerate(self._access.allocs):
            scope = str(alloc.scope)
            reason = self._reason_to_leave(index, alloc)
            if reason is not None:
                note = AllocationNote(index, alloc.name, scope, reason, self._is_used(index))
                self._left_alone.append(note)
                continue
            name = unique_name(alloc.name, names)
            owner = self._uses[index].owner
            group = groups.setdefault((owner, scope), {})
            loop = self._uses[index].loop
            allocation = Allocation(index, self._access.alloc_stmts[index], loop)
            group[name] = self._buffer(name, index), allocation
            if group[name][0].slots < self._asked_slots(index):
                text = (
                    "no loop is around its allocation whose iterations could take turns with "
                    "slots, so it has one"
                )
                self._remarks.append(AllocationNote(index, name, scope, text))
        return FunctionProblems(
            tuple(self._attach(groups)),
            tuple(self._left_alone),
            tuple(self._remarks),
            tuple(self._used_bounds.values()),
            self._access,
            self._uses,
        )

    # What is left alone

    def _reason_to_leave(self, index: int, alloc: AllocEntry) -> str | None:
        """Say why an allocation keeps memory of its own, if it does."""
        uses, options, scope = self._uses[index], self._options, str(alloc.scope)
        described = options.memory is not None and scope in options.memory
        if options.scopes is not None and scope not in options.scopes:
            return "its scope is not asked for"
        if options.scopes is None and options.memory is not None and not described:
            known = ", ".join(memory.name for memory in options.memory)
            return f"the target does not describe its scope, but {known}"
        if not self._is_used(index):
            return "nothing uses it"
        if uses.owner is not None and uses.owner not in self._owner_ranges:
            return "each thread of a parallel region has its own"
        is_pinned = len(self._addresses(index)) > 0
        # Other chips' addresses may be pairs, as of a bank and an offset.
        is_place = is_pinned and len(self._addresses(index)) == self._slots(index)
        if options.addressed and is_place and self._size(index):
            return None
        if scope in self._unknown and not is_pinned:
            return "a buffer of unknown size has an address in its scope"
        if alloc.element.is_scalable or any(dtype.lanes < 0 for dtype in uses.dtypes):
            return "the size of its elements is known at run time only"
        if alloc.num_physical_dimensions != 1:
            return f"it has {alloc.num_physical_dimensions} dimensions"
        if uses.count > 1:
            return "it is allocated in several places"
        size = self._size(index)
        if size is None:
            return "its size is symbolic, and no upper bound is known"
        if size <= 0:
            return f"its size is {size} bytes"
        if options.scopes is None and _is_register(alloc, size, described):
            return "it is kept in registers"
        if not is_pinned:
            if options.callers.again:
                return "its function may be called again while it runs"
            if options.callers.at_once and alloc.scope.is_shared_by_threads:
                return "several iterations or threads may be in its function at once"
        if options.addressed:
            if uses.owner is not None and alloc.scope.rank == "global":
                return "each iteration or thread has its own, in memory that all of them share"
        elif alloc.is_volatile:
            return "it is volatile"
        elif any(dtype.bits % 8 for dtype in uses.dtypes):
            return "its elements are no whole bytes"
        return None

    def _is_used(self, index: int) -> bool:
        return index in self._touched or self._uses[index].escapes

    def _addresses(self, index: int) -> Any:
        """Return the addresses that the program itself asks for; often none."""
        return self._access.alloc_stmts[index].buffer.ty.allocated_addr

    def _size(self, index: int) -> int | None:
        """Return the bytes of one slot, at the upper bounds of its variables."""
        alloc = self._access.allocs[index]
        if alloc.element.is_scalable:
            return None
        growth = self._growth(alloc.element.scalar)
        if alloc.shape is not None:
            return -(-alloc.const_nbits * growth // 8)
        extent, *others = self._access.alloc_stmts[index].buffer.ty.shape
        if others:
            return None
        found = next(filter(None, (bounds.most(extent) for bounds in self._bounds)), None)
        if found is None:
            return None
        most, used = found
        for bound in used:
            key = bound.variable.__chandle__()
            if key not in self._used_bounds or bound.lower > NO_LOWER:
                self._used_bounds[key] = bound
        return -(-max(most, 0) * alloc.element.nbits * growth // 8)

    def _growth(self, scalar: str) -> int:
        """Return how many times as wide as declared elements are where the function runs."""
        if not self._options.addressed or self._options.is_native:
            return 1
        dtype = tvm_ffi.dtype(scalar)
        return -(-stored_bits(dtype, self._target) // int(dtype.bits))

    # What is planned

    def _buffer(self, name: str, index: int) -> Buffer:
        return Buffer(
            name,
            self._size(index) or 0,
            (self._live(index),),
            self._uses[index].alignment(
                self._access.alloc_stmts[index].buffer,
                lambda dtype: self._growth(str(dtype.with_lanes(1))),
            ),
            self._slots(index),
            self._pinned(index),
        )

    def _pinned(self, index: int) -> tuple[int, ...] | None:
        """Return the offsets that the program itself asks for."""
        addresses = self._addresses(index)
        if not len(addresses):
            return None
        alloc, size = self._access.allocs[index], self._size(index) or 0
        memory = self._options.memory_of(str(alloc.scope))
        taken = self._options.callers.taken.get(str(alloc.scope), ())
        for address in addresses:
            where = f"buffer {alloc.name!r} in {alloc.scope}: its allocated_addr"
            if not isinstance(address, IntImm):
                raise ValueError(f"{where} must be constants, got {address}")
            begin = int(address.value)
            if any(common(((begin, begin + size),), taken)):
                held = ", ".join(f"[{first}, {end})" for first, end in taken)
                raise ValueError(
                    f"{where} {begin} is for {size} bytes, and functions that call this one hold "
                    f"{held} meanwhile"
                )
        return tuple(int(address.value) - memory.base for address in addresses)

    def _slots(self, index: int) -> int:
        # TVM removes loops of one iteration, and one iteration takes one slot.
        return 1 if self._uses[index].loop is None else self._asked_slots(index)

    def _asked_slots(self, index: int) -> int:
        statement = self._access.alloc_stmts[index]
        value = statement.annotations.get(_MULTI_BUFFER, 1)
        slots = getattr(value, "value", value)
        where = f"buffer {statement.buffer.name!r} in {self._access.allocs[index].scope}"
        if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
            raise ValueError(f"{where}: {_MULTI_BUFFER} must be a positive integer, got {value}")
        if slots > MOST_SLOTS:
            raise ValueError(
                f"{where}: {_MULTI_BUFFER} asks for {slots} slots, and at most {MOST_SLOTS} are "
                "planned"
            )
        return slots

    def _live(self, index: int) -> LiveRange:
        uses, alloc = self._uses[index], self._access.allocs[index]
        if not uses.escapes and not alloc.is_volatile and uses.count == 1:
            return self._touched[index]
        return self._whole if uses.owner is None else self._owner_ranges[uses.owner]

    def _attach(
        self, groups: Mapping[tuple[int | None, str], Mapping[str, tuple[Buffer, Allocation]]]
    ) -> Iterator[AttachedProblem]:
        ranges: dict[int | None, LiveRange] = {None: self._whole}
        ranges.update(self._owner_ranges.items())

        def from_outside(group: tuple[tuple[int | None, str], Any]) -> tuple[bool, int]:
            begin, end = ranges[group[0][0]]
            return group[0][0] is not None, begin - end

        ordered = sorted(groups.items(), key=from_outside)
        placed: list[tuple[LiveRange, str]] = []
        for (owner, scope), members in ordered:
            begin, end = ranges[owner]
            enclosing = tuple(
                at
                for at, (around, other) in enumerate(placed)
                if other == scope and around[0] <= begin and end <= around[1]
            )
            placed.append((ranges[owner], scope))
            allocations = {name: allocation for name, (_, allocation) in members.items()}
            addressed = self._options.addressed
            by_address = addressed or self._by_address(members)
            racing = tuple(racing_pairs(allocations, self._access, self._uses, by_address))
            owner_range = (begin, end) if addressed else None
            separated = {frozenset(pair) for pair in racing}
            safe_pairs = tuple(
                pair
                for pair in (self._in_place(allocations) if self._options.detect_inplace else ())
                if frozenset(pair) not in separated
            )
            slots = {name: buffer.slots for name, (buffer, _) in members.items()}
            problem = Problem(
                tuple(buffer for buffer, _ in members.values()),
                self._options.memory_of(scope),
                pairs_that_take_turns(safe_pairs, allocations, slots, self._options.unequal_slots),
                racing,
                name=scope if owner is None else f"{scope} inside a parallel scope",
            )
            yield AttachedProblem(problem, allocations, owner, enclosing, owner_range, safe_pairs)

    def _by_address(self, members: Mapping[str, tuple[Buffer, Allocation]]) -> bool:
        """Whether an arena of these buffers gives each an address of its own.

        TVM sees no more then that they are of one memory; see `passes.prim_func.arena`.
        """
        return any(
            buffer.slots > 1 or not self._uses[allocation.index].has_movable_indices
            for buffer, allocation in members.values()
        )

    def _in_place(self, allocations: Mapping[str, Allocation]) -> Iterator[tuple[str, str]]:
        """Yield the pairs where one's life ends in the statement in which the other's begins.

        They are safe if both use the same slot index; `pairs_that_take_turns` asks for that.
        """
        pairs, sequence = InPlacePairs(self._access, self._uses), self._access.sequence
        # A buffer that only a kept pointer reaches is touched by no entry of the sequence. Elements
        # that TVM widens later are at other bytes than the pairs assume.
        seen = {
            name: a
            for name, a in allocations.items()
            if a.index in self._touched
            and self._uses[a.index].count == 1
            and self._growth(self._access.allocs[a.index].element.scalar) == 1
        }
        beginning: dict[int, list[str]] = {}
        for name, allocation in seen.items():
            beginning.setdefault(self._touched[allocation.index][0], []).append(name)
        found: set[frozenset[str]] = set()  # Two lives within one statement may qualify both ways.
        for source, allocation in seen.items():
            last = self._touched[allocation.index][1] - 1
            first = last + min(sequence[last].scope_pair_offset, 0)
            for destination in beginning.get(first, ()):
                other = allocations[destination]
                if other.index == allocation.index:
                    continue
                pair = frozenset((source, destination))
                if pair not in found and pairs.allows(first, other.index, allocation.index):
                    found.add(pair)
                    yield source, destination


def _touched_ranges(sequence: Sequence[StmtEntry]) -> dict[int, LiveRange]:
    """Return the positions from the first to the last statement that touches each allocation."""
    ranges: dict[int, LiveRange] = {}
    for position, entry in enumerate(sequence):
        if entry.scope_pair_offset > 0:
            continue  # The second entry of a statement with a body lists what it touches.
        first = position + entry.scope_pair_offset
        for index in entry.touched:
            begin, end = ranges.get(index, (first, position + 1))
            ranges[index] = min(begin, first), max(end, position + 1)
    return ranges


def _owner_ranges(sequence: Sequence[StmtEntry]) -> dict[int, LiveRange]:
    """Return the positions of the parallel loops and thread extents, by handle."""
    return {
        entry.key: (position, position + entry.scope_pair_offset + 1)
        for position, entry in enumerate(sequence)
        if entry.kind in (StmtKind.PARALLEL, StmtKind.THREAD) and entry.scope_pair_offset > 0
    }


def _is_register(alloc: AllocEntry, size: int, described: bool) -> bool:
    if alloc.scope.tag:
        return False
    return size <= _REGISTER_BYTES or (alloc.scope.is_register_like and not described)
