# SPDX-License-Identifier: Apache-2.0
"""From a function to planning problems: live ranges, sizes, alignments and memories of buffers.

One problem holds the allocations that compete for one storage scope at one *attach point*: the
whole function, or the parallel loop or thread extent whose every iteration or thread needs memory
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from passes.ir import (
    DEFAULT_ALIGNMENT,
    NO_LOWER,
    AllocationUses,
    Bound,
    LinearAccess,
    PrimFunc,
    bounds_at_entry,
    find_accesses,
    find_linear_access,
    is_widened_later,
    most_of,
    nodes_in,
    stored_bits,
    tir,
    unique_name,
)
from passes.planning import ADDRESS_LIMIT, Buffer, LiveRange, Problem, common, join_ranges
from passes.prim_func.function_problems import (
    AllocationNote,
    AttachedProblem,
    FunctionProblems,
    pairs_that_take_turns,
)
from passes.prim_func.in_place_pairs import may_be_in_place
from passes.prim_func.module_calls import Callers
from passes.prim_func.thread_races import is_shared, racing_pairs
from target_hw.memory import MemoryHierarchy, MemoryScope

MOST_SLOTS = 256  # Slots of one buffer beyond which it is refused: each is placed by itself

_REGISTER_BYTES = 4
_MULTI_BUFFER = "multi_buffer"


@dataclass(frozen=True)
class ProblemOptions:
    """The allocations to plan, and the facts about them that the function itself does not state."""

    # The scopes of which all allocations are planned. By default every scope, or with
    # `memory` every scope that it describes; but then what a code generator keeps in registers
    # stays as it is, as in `StorageRewrite`: untagged allocations of at most 4 bytes, and all in
    # untagged scopes of ``warp`` rank or nearer to the core, unless `memory` describes them.
    scopes: tuple[str, ...] | None = None
    # Capacities, alignments and reserved ranges. A scope that it does not describe has no capacity,
    # and an alignment of `DEFAULT_ALIGNMENT`.
    memory: MemoryHierarchy | None = None
    # The most that variables of a symbolic size can be, by name. Those in the function's attribute
    # ``tir_var_upper_bound`` hold as well.
    upper_bounds: tuple[tuple[str, int], ...] = ()
    # Whether a result may take the place of an operand that dies in the same statement.
    detect_inplace: bool = True
    # Whether offsets become addresses in the one memory of the chip, rather than places in an
    # allocation that the program makes. Then volatile and bit-packed memory is planned too, but
    # ``global`` memory of a parallel loop or thread is not: it has as many addresses as there are
    # iterations. Elements are as wide as TVM stores them, which may be wider than declared; an
    # arena's views keep their types.
    addressed: bool = True
    # Whether the chip has arithmetic for every type in the function, so that all are stored as
    # declared. Functions bound to an ``ext_dev``, which TVM does not build, are taken so too.
    is_native: bool = False
    # Facts of the functions that call this one.
    callers: Callers = field(default_factory=Callers)
    # Capacities that the function's target says of its own, which leave open what there is besides.
    limits: MemoryHierarchy = field(default_factory=MemoryHierarchy)

    def __post_init__(self) -> None:
        if isinstance(self.scopes, str):
            raise ValueError(f"scopes must be a sequence of names, got {self.scopes!r}")
        for scope in self.scopes or ():
            MemoryScope(scope)  # Names what is wrong with it.
            if self.memory is not None and scope not in self.memory:
                known = ", ".join(described.name for described in self.memory) or "none"
                raise ValueError(f"scope {scope!r} is not in the target's memory; it has: {known}")

    def memory_of(self, scope: str) -> MemoryScope:
        """Return what is known of a scope's memory, without what callers hold in it."""
        if self.memory is not None and scope in self.memory:
            memory = self.memory[scope]
        else:
            capacity = self.limits[scope].capacity if scope in self.limits else None
            memory = MemoryScope(scope, capacity, DEFAULT_ALIGNMENT)
        # A caller's memory may be described otherwise, or not at all.
        end_of_memory = ADDRESS_LIMIT if memory.capacity is None else memory.capacity
        taken = [
            (max(begin - memory.base, 0), min(end - memory.base, end_of_memory))
            for begin, end in self.callers.taken.get(scope, ())
            if memory.base < end and begin - memory.base < end_of_memory
        ]
        return replace(memory, reserved=join_ranges((*memory.reserved, *taken)))


def find_problems(func: PrimFunc, options: ProblemOptions | None = None) -> FunctionProblems:
    """Read the planning problems off a function, flat, as it stands where `StorageRewrite` runs.

    An allocation's life begins before the first statement at its own level that touches it and ends
    after the last, so one made outside of a loop lives through the whole loop; so does one that
    carries a value from one round of the loop to the next. One whose address
    may be kept, or that is volatile, lives as long as its attach point runs. ValueError is raised,
    naming the buffer, when the function is not one that can be planned.
    """
    return _ProblemReader(func, options or ProblemOptions()).read()


class _ProblemReader:
    """Reads the problems of one function off its access sequence and memory uses."""

    def __init__(self, func: PrimFunc, options: ProblemOptions) -> None:
        self._options = options
        self._target = func.attrs.get("target")
        self._access = find_linear_access(func)
        if self._access.undeclared:
            buffer = self._access.undeclared[0]
            where = f"buffer {buffer.name!r} in {buffer.ty.storage_scope or 'global'}"
            raise ValueError(f"{where} is accessed but not declared before")
        self._accesses = find_accesses(self._access, options.callers.lasting)
        self._uses = self._accesses.of
        self._at_entry = bounds_at_entry(func, dict(options.upper_bounds))
        # The positions at which each owner runs: the function, parallel loops, thread extents.
        self._ranges = self._access.ranges
        self._touched = _touched_ranges(self._access, self._uses)
        # The bytes of one slot, at the upper bounds of its variables, and these bounds; None where
        # the size is not known.
        self._sizes = [self._size(uses) for uses in self._uses]
        # The scopes in which a buffer of unknown size asks for an address.
        self._unknown = options.callers.unknown | {
            uses.scope
            for uses in self._uses
            if self._sizes[uses.index] is None and options.addressed and self._is_used(uses)
            if len(uses.buffer.ty.allocated_addr)
        }

    def read(self) -> FunctionProblems:
        groups: dict[tuple[int | None, str], dict[str, AllocationUses]] = {}
        left_alone: list[AllocationNote] = []
        remarks: list[AllocationNote] = []
        bounds: dict[int, Bound] = {}
        names: set[str] = set()
        for uses in self._uses:
            scope, reason = uses.scope, self._reason_to_leave(uses)
            note = partial(AllocationNote, uses.alloc.name, scope)
            if reason is not None:
                # Of a buffer without elements nothing is used, wherever it stands.
                size, _ = self._sizes[uses.index] or (None, ())
                is_used = self._is_used(uses) and size != 0
                left_alone.append(note(reason, is_used))
                continue
            groups.setdefault((uses.owner, scope), {})[unique_name(uses.alloc.name, names)] = uses
            if self._slots(uses) < _asked_slots(uses):
                text = (
                    "no loop is around its allocation whose iterations could take turns with slots"
                )
                if uses.carrying is not None:
                    name = getattr(getattr(uses.carrying, "loop_var", None), "name", "while")
                    text = f"a round of loop {name!r} may read what an earlier one wrote"
                remarks.append(note(f"{text}, so it has one"))
            for bound in (self._sizes[uses.index] or (0, ()))[1]:
                key = bound.variable.__chandle__()
                if key not in bounds or bound.lower > NO_LOWER:
                    bounds[key] = bound
        problems, assumed = tuple(self._attached(groups)), tuple(bounds.values())
        notes = tuple(left_alone), tuple(remarks)
        return FunctionProblems(problems, *notes, assumed, self._access, self._accesses)

    # Buffers that are left alone

    def _reason_to_leave(self, uses: AllocationUses) -> str | None:
        """Say why an allocation keeps memory of its own, if it does."""
        options, alloc, scope = self._options, uses.alloc, uses.scope
        described = options.memory is not None and scope in options.memory
        if options.scopes is not None and scope not in options.scopes:
            return "its scope is not asked for"
        if options.scopes is None and options.memory is not None and not described:
            known = ", ".join(memory.name for memory in options.memory)
            return f"the target describes no such scope: it describes {known or 'none'}"
        if not self._is_used(uses):
            return "nothing uses it"
        if uses.owner not in self._ranges:
            return "each thread of a parallel region has its own"
        size, _ = self._sizes[uses.index] or (None, ())
        addresses = len(uses.buffer.ty.allocated_addr)
        # Other chips' addresses may be pairs, as of a bank and an offset.
        if options.addressed and addresses and addresses == self._slots(uses) and size:
            return None
        if scope in self._unknown and not addresses:
            return "a buffer of unknown size has an address in its scope, here or in a caller"
        if alloc.element.is_scalable or any(dtype.lanes < 0 for dtype in uses.dtypes):
            return "the size of its elements is known at run time only"
        if alloc.num_physical_dimensions != 1:
            return f"it has {alloc.num_physical_dimensions} dimensions"
        if len(uses.made) > 1:
            return "it is allocated in several places"
        if size is None:
            variables = (v.name for e in uses.buffer.ty.shape for v in nodes_in(e, tir.Var))
            names = (
                ", ".join(dict.fromkeys(map(str, variables))) or "a value in memory, or a call's"
            )
            return f"its size rests on {names}, and no upper bound of it is known"
        if size <= 0:
            return f"its size is {size} bytes"
        is_near = alloc.scope.is_register_like and not described
        if options.scopes is None and not alloc.scope.tag and (size <= _REGISTER_BYTES or is_near):
            return "TVM keeps small and thread-local buffers in registers"
        if not addresses and options.callers.again:
            return "its function may be called again while it runs"
        if not addresses and options.callers.at_once and alloc.scope.is_shared_by_threads:
            return "several iterations or threads may be in its function at once"
        if options.addressed:
            if uses.owner is not None and alloc.scope.rank == "global":
                return "each iteration or thread has its own, in memory that all of them share"
        elif options.callers.on_stack and scope == "global":
            return "its function is private, and takes small buffers from the stack"
        elif alloc.is_volatile:
            return "it is volatile"
        elif is_shared(uses):
            return "threads share it, and TVM goes by the buffer where it places their barriers"
        elif any(dtype.bits % 8 for dtype in uses.dtypes):
            return "its elements are no whole bytes"
        elif not options.is_native and any(is_widened_later(d, self._target) for d in uses.dtypes):
            return "TVM makes wider elements of it later, if nothing else shares its memory"
        return None

    def _is_used(self, uses: AllocationUses) -> bool:
        return uses.index in self._touched or uses.escapes

    def _size(self, uses: AllocationUses) -> tuple[int, tuple[Bound, ...]] | None:
        alloc, shape = uses.alloc, uses.buffer.ty.shape
        if alloc.element.is_scalable:
            return None
        growth = self._growth(uses.buffer.ty.dtype.dtype)
        if not alloc.is_symbolic:
            return -(-alloc.const_nbits * growth // 8), ()
        if len(shape) != 1:
            return None
        found = next(filter(None, (most_of(shape[0], bounds) for bounds in self._at_entry)), None)
        if found is None:
            return None
        return -(-max(found[0], 0) * alloc.element.nbits * growth // 8), found[1]

    def _growth(self, dtype: Any) -> int:
        """Return how many times as wide as declared elements are where the function runs."""
        if not self._options.addressed or self._options.is_native:
            return 1
        return -(-stored_bits(dtype, self._target) // int(dtype.bits))

    # Buffers that are planned

    def _buffer(self, name: str, uses: AllocationUses) -> Buffer:
        size, _ = self._sizes[uses.index] or (0, ())
        live, alignment = (self._live(uses),), uses.alignment(self._growth)
        pinned, slots = self._pinned(uses, size), self._slots(uses)
        try:
            return Buffer(name, size, live, alignment, slots, pinned)
        except ValueError as error:
            raise ValueError(f"{uses.scope}: {error}") from error

    def _pinned(self, uses: AllocationUses, size: int) -> tuple[int, ...] | None:
        """Return the offsets that the program itself asks for."""
        addresses, scope = uses.buffer.ty.allocated_addr, uses.scope
        if not len(addresses):
            return None
        memory = self._options.memory_of(scope)
        taken = self._options.callers.taken.get(scope, ())
        for address in addresses:
            where = f"buffer {uses.buffer.name!r} in {scope}: its allocated_addr"
            if not isinstance(address, tir.IntConstant):
                raise ValueError(f"{where} must be constants, got {address}")
            begin = int(address.value)
            if any(common(((begin, begin + size),), taken)):
                held = ", ".join(f"[{first}, {end})" for first, end in taken)
                raise ValueError(
                    f"{where} {begin} is for {size} bytes, and functions that call this one hold "
                    f"{held} meanwhile"
                )
        return tuple(int(address.value) - memory.base for address in addresses)

    def _slots(self, uses: AllocationUses) -> int:
        # TVM removes loops of one iteration, and one iteration takes one slot.
        return 1 if uses.loop is None or uses.carrying is not None else _asked_slots(uses)

    def _live(self, uses: AllocationUses) -> LiveRange:
        if uses.escapes or uses.alloc.is_volatile or len(uses.made) != 1:
            return self._ranges[uses.owner]
        return self._touched[uses.index]

    def _attached(
        self, groups: Mapping[tuple[int | None, str], Mapping[str, AllocationUses]]
    ) -> Iterator[AttachedProblem]:
        """Yield a problem for each owner and scope, from outside in."""
        addressed = self._options.addressed

        def from_outside(group: tuple[int | None, str]) -> tuple[bool, int]:
            begin, end = self._ranges[group[0]]
            return group[0] is not None, begin - end

        ordered = sorted(groups, key=from_outside)
        for number, (owner, scope) in enumerate(ordered):
            allocations = groups[owner, scope]
            buffers = tuple(self._buffer(*each) for each in allocations.items())
            begin, end = self._ranges[owner]
            enclosing = tuple(
                at
                for at, (around, other) in enumerate(ordered[:number])
                if other == scope
                and self._ranges[around][0] <= begin
                and end <= self._ranges[around][1]
            )
            racing = tuple(racing_pairs(allocations))
            separated = {frozenset(pair) for pair in racing}
            pairs = self._in_place(allocations) if self._options.detect_inplace else ()
            safe = tuple(pair for pair in pairs if frozenset(pair) not in separated)
            slots = {buffer.name: buffer.slots for buffer in buffers}
            problem = Problem(
                buffers,
                self._options.memory_of(scope),
                pairs_that_take_turns(safe, allocations, slots),
                racing,
                name=scope if owner is None else f"{scope} inside a parallel scope",
            )
            owner_range = (begin, end) if addressed else None
            yield AttachedProblem(problem, allocations, owner, enclosing, owner_range, safe)

    def _in_place(self, allocations: Mapping[str, AllocationUses]) -> Iterator[tuple[str, str]]:
        """Yield the pairs where one's life ends in the statement in which the other's begins.

        They are safe if both use the same slot index; `pairs_that_take_turns` asks for that.
        """
        sequence = self._access.sequence
        # A buffer that only a kept pointer reaches is touched by no entry of the sequence. Elements
        # that TVM widens later are at other bytes than the pairs assume.
        seen = {
            name: uses
            for name, uses in allocations.items()
            if uses.index in self._touched
            and len(uses.made) == 1
            and uses.carrying is None
            and self._growth(uses.buffer.ty.dtype.dtype) == 1
        }
        beginning: dict[int, list[str]] = {}
        for name, uses in seen.items():
            beginning.setdefault(self._touched[uses.index][0], []).append(name)
        found: set[frozenset[str]] = set()  # Two lives within one statement may qualify both ways.
        for source, uses in seen.items():
            last = self._touched[uses.index][1] - 1
            first = last + min(sequence[last].scope_pair_offset, 0)
            for destination in beginning.get(first, ()):
                pair = frozenset((source, destination))
                if destination == source or pair in found:
                    continue
                both = seen[destination], uses
                if may_be_in_place(self._access, self._accesses, first, *both):
                    found.add(pair)
                    yield source, destination


def _asked_slots(uses: AllocationUses) -> int:
    buffer, slots = uses.buffer, uses.annotations.get(_MULTI_BUFFER, 1)
    where = f"buffer {buffer.name!r} in {buffer.ty.storage_scope or 'global'}"
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise ValueError(f"{where}: {_MULTI_BUFFER} must be a positive integer, got {slots!r}")
    if slots > MOST_SLOTS:
        raise ValueError(
            f"{where}: {_MULTI_BUFFER} asks for {slots} slots, and at most {MOST_SLOTS} are planned"
        )
    return slots


def _touched_ranges(access: LinearAccess, uses: Sequence[AllocationUses]) -> dict[int, LiveRange]:
    """Return the positions from the first to the last statement that touches each allocation.

    One that carries a value is touched by all of the loop that carries it.
    """
    ranges: dict[int, LiveRange] = {}
    for position, entry in enumerate(access.sequence):
        if entry.scope_pair_offset > 0:
            continue  # The second entry of a statement with a body lists what it touches.
        first = position + entry.scope_pair_offset
        for index in entry.touched:
            begin, end = ranges.get(index, (first, position + 1))
            ranges[index] = min(begin, first), max(end, position + 1)
    carried = ((u.index, u.carrying.__chandle__()) for u in uses if u.carrying is not None)
    return ranges | {index: access.ranges[loop] for index, loop in carried if index in ranges}
