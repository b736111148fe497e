# SPDX-License-Identifier: Apache-2.0
"""The memory of a chip, as plain data: scopes, capacities, alignments, reserved ranges.

Nothing here imports TVM, so that planners can read a scope without a compiler at hand. All sizes,
offsets and ranges are in bytes, and every range is half-open.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, SupportsIndex, TypeGuard, TypeVar

from target_hw.storage_scope import parse_storage_scope

ByteRange = tuple[int, int]
"""Half-open range of byte offsets, ``(begin, end)``."""

Facts = tuple[tuple[str, int], ...]
"""Facts about a memory for a chip's own passes: named integers."""

Feature = TypeVar("Feature")

_LIMITS = {
    "vtcm-capacity": "global.vtcm",
    "max_sbuf_size_per_partition": "trn.sbuf",
    "max_psum_size_per_partition": "trn.psum",
    # Dynamic shared memory may be larger, where a kernel asks its driver for more.
    "max_shared_memory_per_block": "shared",
}
"""The scope whose size in bytes an attribute of TVM's own targets says."""

_LIMIT = 1 << 62
"""Numbers of bytes stay below this: a target holds them as signed words of 64 bits."""


@dataclass(frozen=True)
class MemoryScope:
    """One memory of a chip, as the planners see it.

    A ValueError is raised for a description that cannot be true of any memory; it names the scope
    and the field.
    """

    name: str
    """TVM's storage scope: a rank, or a rank and a tag of the chip's own, such as ``local.UB``."""
    capacity: int | None = None
    """Bytes in this memory; None where no limit is known."""
    alignment: int = 1
    """Every offset in this memory is a multiple of this many bytes (a power of two)."""
    reserved: tuple[ByteRange, ...] = ()
    """Bytes that no buffer may take, in any order; kept sorted."""
    base: int = 0
    """Address of the first byte, a multiple of `alignment`, from which offsets and reserved ranges
    count."""
    facts: Facts = ()
    """Other facts for the chip's passes, as a map or as pairs; kept as pairs, sorted. No planner
    reads them."""
    bytes_per_cycle: int | None = None
    """Bytes that its bus moves in a cycle. Several ``global`` memories that have this number are
    several memories for the tensors of a network: see `MemoryHierarchy.for_tensors`."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        where = f"memory scope {self.name!r}"
        for field in _NUMBERS:
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                number = checked_number(where, field.name, value, int(field.name != "base"))
                object.__setattr__(self, field.name, number)
        reserved = _checked_ranges(where, self.reserved, self.capacity)
        object.__setattr__(self, "reserved", reserved)
        facts = sorted(named_integers(where, "facts", self.facts))
        object.__setattr__(self, "facts", tuple(facts))
        for fault in _contradictions(self):
            raise ValueError(f"{where}: {fault}")

    def fact(self, name: str) -> int:
        """Return the fact called `name`; ValueError with the known names otherwise."""
        facts = dict(self.facts)
        if name not in facts:
            known = ", ".join(facts) or "none"
            raise ValueError(f"memory scope {self.name!r}: no fact {name!r}; it has: {known}")
        return facts[name]

    def to_feature(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain lists, maps and integers."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)[1:]}
        plain |= {"reserved": [list(each) for each in self.reserved], "facts": dict(self.facts)}
        given = [f.name for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return {name: plain[name] for name in given}

    @classmethod
    def from_feature(cls, name: str, description: object) -> MemoryScope:
        """Read what `to_feature` writes; the defaults hold for fields that are left out.

        Where this is no description of a memory, the message of the ValueError names the scope and
        the field.
        """
        known = [field.name for field in fields(cls)[1:]]
        return cls(name, **as_map(f"memory scope {name!r}", description, known))


_NUMBERS = [f for f in fields(MemoryScope) if f.name not in ("name", "reserved", "facts")]


@dataclass(frozen=True)
class MemoryHierarchy:
    """The memories of one chip, found by scope name, in the order of the chip's tables.

    A ValueError is raised if an entry is no `MemoryScope`, or two have the same name.
    """

    scopes: tuple[MemoryScope, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.scopes, MemoryScope):
            raise ValueError(
                "memory hierarchy: needs a tuple of MemoryScopes, got one scope; "
                "write MemoryHierarchy((scope,))"
            )
        object.__setattr__(self, "scopes", tuple(self.scopes))
        for scope in self:
            if not isinstance(scope, MemoryScope):
                raise ValueError(f"memory hierarchy: needs MemoryScopes, got {scope!r}")
        if twice := repeated([scope.name for scope in self]):
            raise ValueError(f"memory hierarchy: scope {twice!r} is described twice")

    def __iter__(self) -> Iterator[MemoryScope]:
        return iter(self.scopes)

    def __len__(self) -> int:
        return len(self.scopes)

    def __contains__(self, name: object) -> bool:
        return any(scope.name == name for scope in self)

    def __getitem__(self, name: str) -> MemoryScope:
        """Return the scope called `name`; KeyError with the known names otherwise."""
        by_name = {scope.name: scope for scope in self}
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise KeyError(f"memory hierarchy: no scope {name!r}; it has: {known}")
        return by_name[name]

    def for_tensors(self) -> tuple[MemoryScope, ...]:
        """Return the memories that a network's tensors may lie in, the fastest first.

        These are the scopes of rank ``global`` that say how many bytes they move in a cycle, if
        there are two or more; of equals, the one that is listed first. Empty otherwise: all
        tensors lie in ``global`` then.
        """
        in_global = (scope for scope in self if parse_storage_scope(scope.name).rank == "global")
        rated = [scope for scope in in_global if scope.bytes_per_cycle]
        rated.sort(key=lambda scope: scope.bytes_per_cycle or 0, reverse=True)
        return tuple(rated) if len(rated) > 1 else ()

    def with_scope(self, scope: MemoryScope) -> MemoryHierarchy:
        """Return a copy where `scope` stands for the scope of its name, or is added at the end."""
        by_name = {**{old.name: old for old in self}, scope.name: scope}
        return MemoryHierarchy(tuple(by_name.values()))

    def to_feature(self) -> dict[str, dict[str, Any]]:
        """Return plain data for a target's ``feature.memory``; `from_feature` reads it."""
        return {scope.name: scope.to_feature() for scope in self.scopes}

    @classmethod
    def from_feature(cls, feature: object) -> MemoryHierarchy:
        """Read what `to_feature` writes, as `MemoryScope.from_feature` does."""
        described = as_map("memory hierarchy", feature)
        return cls(tuple(MemoryScope.from_feature(*entry) for entry in described.items()))

    @classmethod
    def of_limits(cls, target: Any) -> MemoryHierarchy:
        """Return the memories whose size one of TVM's own targets says; empty where none does.

        The limits are Hexagon's ``vtcm-capacity``, those of a Trainium core for each partition,
        and ``max_shared_memory_per_block`` of GPUs.
        """
        sizes = {scope: as_plain(target.attrs.get(name)) for name, scope in _LIMITS.items()}
        return cls(tuple(MemoryScope(s, n) for s, n in sizes.items() if is_byte_count(n) and n > 0))

    @classmethod
    def from_target(cls, target: Any) -> MemoryHierarchy:
        """Read the memories that a target carries, or those whose size TVM's own target says.

        TypeError is raised when `target` is no target; ValueError, which names the target, when it
        has neither a ``feature.memory`` map nor one of the limits of `of_limits`, or describes no
        possible memory.
        """
        features = getattr(target, "features", None)
        if features is not None and features.memory is None and (limits := cls.of_limits(target)):
            return limits
        hint = (
            "carries no memory description (feature.memory); take a chip's target such as "
            "'ascend/910b', or add one with target_hw.with_memory"
        )
        return read_feature(target, "memory", "memory hierarchy", hint, cls.from_feature)


def read_feature(
    target: Any, name: str, what: str, missing: str, read: Callable[[object], Feature]
) -> Feature:
    """Read a feature of a target; errors name it, and say what is `missing` where it has none."""
    # Attributes of a Target are looked up by name, so that planners can do without TVM.
    features = getattr(target, "features", None)
    if features is None:
        raise TypeError(f"{what}: needs a tvm.target.Target, got {target!r}")
    try:
        feature = getattr(features, name)
        if feature is None:
            raise ValueError(missing)
        return read(feature)
    except ValueError as error:
        raise ValueError(f"target {target_label(target)}: {error}") from error


def repeated(names: Sequence[str]) -> str | None:
    """Return the first name that comes twice, if one does."""
    return next((name for name in names if names.count(name) > 1), None)


def as_map(where: str, value: object, known: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a map, of any type, by plain strings; ValueError for none, or for an unknown field."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: must be a map, got {value!r}")
    given = {str(field): entry for field, entry in value.items()}
    for field in given:
        if known is not None and field not in known:
            raise ValueError(f"{where}: no field {field!r}; there are: {', '.join(known)}")
    return given


def round_up(value: int, multiple: int) -> int:
    """Return the first multiple that is not below a value."""
    return -(-value // multiple) * multiple


def settle(offset: int, size: int, alignment: int, obstacles: Sequence[ByteRange]) -> int:
    """Return the lowest aligned offset from `offset` up at which `size` bytes are free.

    `obstacles` are the taken bytes, sorted by their begin; they may overlap.
    """
    offset += -offset % alignment
    for begin, end in obstacles:
        if begin >= offset + size:
            break
        if end > offset:
            offset = end + -end % alignment
    return offset


def is_byte_count(value: object) -> TypeGuard[int]:
    """Return whether `value` is a plain integer: True for 4, False for True, 4.0 and "4"."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_list(value: object) -> bool:
    """Return whether `value` is a sequence, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def as_plain(value: object) -> object:
    """Return an integer of another library, such as NumPy's, as a plain one; all else as it is."""
    if type(value) is int or isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return value
    if str(getattr(value, "dtype", "")) == "bool":  # An index to NumPy before 2.3
        return value
    try:
        return operator.index(value)
    except TypeError:  # An array of several numbers
        return value


def target_label(target: Any) -> str:
    """Name a target in a message: by its chip, else by all that it says."""
    chip = target.attrs.get("model")
    return f"{str(chip)!r} ({target.kind.name})" if chip else str(target)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"memory scope: name must be a string, got {name!r}")
    try:
        tag = parse_storage_scope(name).tag
    except ValueError as error:
        raise ValueError(f"memory scope {name!r}: not a scope that TVM knows: {error}") from error
    if not name or tag == "." or tag[:1] not in ("", "."):
        raise ValueError(
            f"memory scope {name!r}: not a scope that TVM knows: it must be a rank such as "
            "'local', or 'rank.tag'"
        )


def checked_number(where: str, what: str, value: Any, least: int | None = None) -> int:
    """Return an integer as a plain one; ValueError when it is no integer, or out of bounds."""
    number = as_plain(value)
    if not is_byte_count(number) or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{where}: {what} must be an integer{bound}, got {value!r}")
    if abs(number) >= _LIMIT:
        raise ValueError(f"{where}: {what} must be below 2**62, got {value}")
    return number


def named_integers(where: str, what: str, given: Any, least: int | None = None) -> Facts:
    """Return a map, or pairs, as pairs of a name and an integer; ValueError when it is neither."""
    entries = tuple(given.items()) if isinstance(given, Mapping) else given
    found: dict[str, int] = {}
    for entry in entries if is_list(entries) else (entries,):
        if not is_list(entry) or len(entry) != 2:
            raise ValueError(f"{where}: {what} must map names to integers, got {entry!r}")
        name = str(entry[0])
        if name in found:
            raise ValueError(f"{where}: {what} has {name!r} twice")
        found[name] = checked_number(where, f"{what} of {name!r}", entry[1], least)
    return tuple(found.items())


def _checked_ranges(where: str, ranges: Any, capacity: int | None) -> tuple[ByteRange, ...]:
    """Return ranges in their order; ValueError when one is no range, or two overlap."""
    what = f"{where}: reserved range"
    if not is_list(ranges):
        raise ValueError(f"{what}s must be a list of (begin, end), got {ranges!r}")
    for entry in ranges:
        if not is_list(entry) or len(entry) != 2 or not all(map(is_byte_count, entry)):
            raise ValueError(f"{what} must be two integers (begin, end), got {entry!r}")
        begin, end = entry
        if begin < 0 or end <= begin:
            raise ValueError(f"{what} [{begin}, {end}) is empty or negative")
        if end > (capacity or _LIMIT - 1):
            beyond = "2**62 or more" if capacity is None else f"above the capacity {capacity}"
            raise ValueError(f"{what} [{begin}, {end}) ends {beyond}")
    in_order = sorted((begin, end) for begin, end in ranges)
    for (begin, end), (next_begin, next_end) in pairwise(in_order):
        if next_begin < end:
            raise ValueError(f"{what}s [{begin}, {end}) and [{next_begin}, {next_end}) overlap")
    return tuple(in_order)


def _contradictions(scope: MemoryScope) -> Iterator[str]:
    """Yield what cannot be true of any memory, though each number by itself could."""
    capacity, alignment = scope.capacity, scope.alignment
    if alignment & (alignment - 1):
        yield f"alignment must be a power of two, got {alignment}"
    if capacity is not None and capacity < alignment:
        yield f"capacity of {capacity} bytes is below its alignment of {alignment} bytes"
    if scope.base % alignment:
        yield f"base {scope.base} is not a multiple of its alignment of {alignment} bytes"
