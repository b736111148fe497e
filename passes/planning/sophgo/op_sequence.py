"""A graph as an allocator meets it: ops in the order in which they run, and the values they make.

Plain data. Sizes and alignments are in bytes. An op that calls itself ``reshape`` gives its operand
another shape: its result is the same memory by another name. All names of one piece of memory
together are a *storage*, called by the name of the value that was there first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from passes.planning.problem import Buffer, Problem
from target_hw.memory import MemoryScope, is_byte_count

RESHAPE = "reshape"
"""The kind of an op whose results stand at the address of its first operand."""

WEIGHT = "weight"
"""The kind of an op whose results are weights: they have memory of their own from the start."""

PLACES_NOTHING = frozenset({"call", "func", "none", "return", WEIGHT, "yield"})
"""Kinds whose results are not placed, and which do not end the life of what they read.

Who reads the operands of ``return``, ``yield`` and ``call`` is not in the sequence.
"""


@dataclass(frozen=True)
class Value:
    """What an op makes.

    Parameters
    ----------
    name : str
        Unique within its sequence.
    size : int
        Bytes.
    alignment : int
        Its offset is a multiple of this many bytes, beside what the memory asks for.
    """

    name: str
    size: int
    alignment: int = 1


@dataclass(frozen=True)
class Op:
    """One step of a graph.

    Parameters
    ----------
    name : str
        For people; need not be unique.
    kind : str
        ``reshape`` and `PLACES_NOTHING` have a meaning, all others are alike.
    operands : tuple of str
        The names of the values that it reads; one that is read twice stands here twice.
    results : tuple of Value
        What it makes.
    nested : bool
        Whether it stands inside a group, whose inner values never reach this memory: they count
        as other names of the first operand.
    """

    name: str
    kind: str
    operands: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    nested: bool = False

    @property
    def places(self) -> bool:
        """Whether its results need memory of their own."""
        return not (self.skipped or self.shares)

    @property
    def skipped(self) -> bool:
        """Whether it only counts as a reader."""
        return self.kind in PLACES_NOTHING

    @property
    def shares(self) -> bool:
        """Whether its results stand at the address of its first operand."""
        return not self.skipped and (self.nested or self.kind == RESHAPE)


@dataclass(frozen=True)
class OpSequence:
    """A graph in the order in which it runs.

    Values that come from elsewhere, such as the parameters of a function, are the results of an op
    of kind ``func``; weights are those of ops of kind ``weight``.

    Parameters
    ----------
    ops : tuple of Op
        Each reads only what those before it have made.
    name : str
        Where it comes from, for messages.

    Raises
    ------
    ValueError
        If a name is made twice, read before it is made, or of an impossible size; the message names
        the op and the value.
    """

    ops: tuple[Op, ...]
    name: str = "ops"
    storage_of: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """For each value that is placed, or stands on one that is, the name of its storage."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "storage_of", _checked_storages(self))

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """How often each value is read; an op that reads one twice counts twice."""
        return Counter(operand for op in self.ops for operand in op.operands)

    @cached_property
    def recorded(self) -> tuple[str, ...]:
        """The values that have an address of this memory, by the order of their ops.

        What stands inside a group has none of its own.
        """
        return tuple(
            result.name
            for op in self.ops
            if not op.nested
            for result in op.results
            if result.name in self.storage_of
        )

    @cached_property
    def alignments(self) -> Mapping[str, int]:
        """For each storage, the alignment in bytes that all its names need."""
        found: dict[str, int] = {}
        for op in self.ops:
            for value in op.results:
                storage = self.storage_of.get(value.name)
                if storage is not None:
                    found[storage] = math.lcm(found.get(storage, 1), value.alignment)
        return found

    @property
    def weights(self) -> tuple[Value, ...]:
        """The results of all weight ops, in order."""
        return tuple(value for op in self.ops if op.kind == WEIGHT for value in op.results)


def to_problem(sequence: OpSequence, memory: MemoryScope | None = None) -> Problem:
    """Return the problem of placing the storages of a graph, for any planner.

    Parameters
    ----------
    sequence : OpSequence
        Positions are indices of its ops.
    memory : MemoryScope, optional
        Where they go.

    Returns
    -------
    Problem
        A buffer for each storage, in the order in which they are made. It lives from the op that
        makes it to the last that reads any of its names. It lives to the end if a name of it is
        never read, so that it may be what the graph is for, and if its last reader is one that
        ends no life (`PLACES_NOTHING`, or inside a group).
    """
    ends: dict[str, int] = {}
    for position, op in enumerate(sequence.ops):
        for operand in op.operands:
            if operand in sequence.storage_of:
                end = position + 1 if op.places else len(sequence.ops)
                ends[sequence.storage_of[operand]] = end
    for value in sequence.recorded:
        if value not in sequence.uses:
            ends[sequence.storage_of[value]] = len(sequence.ops)
    buffers = (
        Buffer(
            value.name,
            value.size,
            ((position, ends[value.name]),),
            sequence.alignments[value.name],
        )
        for position, op in enumerate(sequence.ops)
        if op.places
        for value in op.results
    )
    return Problem(tuple(buffers), memory or MemoryScope("global"), name=sequence.name)


def _checked_storages(sequence: OpSequence) -> dict[str, str]:
    """Return the storage of each value that has one, or say what is wrong with the sequence."""
    values: dict[str, Value] = {}
    storages: dict[str, str] = {}
    for op in sequence.ops:
        where = f"{sequence.name}: op {op.name!r}"
        for operand in op.operands:
            if operand not in values:
                raise ValueError(f"{where} reads {operand!r}, which no op before it makes")
        if op.shares and op.results and not op.operands:
            raise ValueError(f"{where} ({op.kind}) has no operand whose memory it could share")
        for value in op.results:
            if value.name in values:
                raise ValueError(f"{where} makes {value.name!r}, which is made before")
            _check_value(where, value)
            if op.places:
                storages[value.name] = value.name
            elif op.shares:
                source = op.operands[0]
                storage = storages.get(source, source)
                if not op.nested and value.size > values[storage].size:
                    raise ValueError(
                        f"{where} gives {storage!r} of {values[storage].size} bytes the name "
                        f"{value.name!r} of {value.size} bytes, which are not there"
                    )
                if source in storages:
                    storages[value.name] = storage
        values.update((value.name, value) for value in op.results)
    return storages


def _check_value(where: str, value: Value) -> None:
    for what, number, least in (("size", value.size, 0), ("alignment", value.alignment, 1)):
        if not is_byte_count(number) or number < least:
            raise ValueError(
                f"{where}: the {what} of {value.name!r} must be an integer of at least {least}, "
                f"got {number!r}"
            )
