"""What memory a chip has, as plain data: scopes, capacities, alignments, banks, reserved ranges.

Nothing here imports TVM, so that planners can read a scope without a compiler at hand. All sizes,
offsets and ranges are in bytes, and every range is half-open: ``(begin, end)`` holds the bytes from
``begin`` up to and not including ``end``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

ByteRange = tuple[int, int]
"""Half-open range of byte offsets, ``(begin, end)``."""

STORAGE_RANKS = (
    "global",
    "shared",
    "warp",
    "local",
    "wmma.matrix_a",
    "wmma.matrix_b",
    "wmma.accumulator",
    "texture",
    "amx.tmm",
    "m16n8k8.matrixA",
    "m16n8k8.matrixB",
    "m16n8k8.matrixC",
    "metal.simdgroup",
    "metal.cooperative_tensor",
    "trn.sbuf",
    "trn.psum",
)
"""The ranks of TVM's storage scopes (``src/runtime/thread_storage_scope.h``, TVM 0.27).

A scope is a rank or ``rank.tag``: ``local``, ``local.UB``, ``global.workspace``.
"""


@dataclass(frozen=True)
class MemoryScope:
    """One memory of a chip, as the planners see it.

    Parameters
    ----------
    name : str
        TVM's storage scope: a rank or ``rank.tag`` (see `STORAGE_RANKS`).
    capacity : int, optional
        Bytes in this memory; None where no limit is known.
    alignment : int
        Every offset in this memory is a multiple of this many bytes (a power of two).
    bank_count : int
        Number of banks, all of one size.
    bank_bytes : int, optional
        Bytes in one bank; needed when there is more than one.
    reserved : tuple of ByteRange
        Bytes that no buffer may take, in any order; kept sorted.

    Raises
    ------
    ValueError
        If the description cannot be true of any memory; the message names the scope and field.
    """

    name: str
    capacity: int | None = None
    alignment: int = 1
    bank_count: int = 1
    bank_bytes: int | None = None
    reserved: tuple[ByteRange, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_alignment(self)
        _check_capacity(self)
        _check_banks(self)
        object.__setattr__(self, "reserved", _checked_reserved(self))


@dataclass(frozen=True)
class MemoryHierarchy:
    """The memories of one chip, found by scope name.

    Parameters
    ----------
    scopes : tuple of MemoryScope
        One entry a scope, in the order in which the chip's tables list them.

    Raises
    ------
    ValueError
        If two entries have the same name.
    """

    scopes: tuple[MemoryScope, ...] = ()

    def __post_init__(self) -> None:
        scopes = tuple(self.scopes)
        names = [scope.name for scope in scopes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"memory hierarchy: scope {name!r} is described twice")
        object.__setattr__(self, "scopes", scopes)

    def __iter__(self) -> Iterator[MemoryScope]:
        return iter(self.scopes)

    def __len__(self) -> int:
        return len(self.scopes)

    def __contains__(self, name: object) -> bool:
        return any(scope.name == name for scope in self.scopes)

    def __getitem__(self, name: str) -> MemoryScope:
        """Return the scope called `name`; KeyError with the known names otherwise."""
        for scope in self.scopes:
            if scope.name == name:
                return scope
        known = ", ".join(scope.name for scope in self.scopes) or "none"
        raise KeyError(f"memory hierarchy: no scope {name!r}; it has: {known}")


def is_byte_count(value: object) -> bool:
    """Whether `value` is a plain integer: True for 4, False for True, 4.0 and "4"."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"memory scope: name must be a string, got {name!r}")
    for rank in STORAGE_RANKS:
        if name == rank or (name.startswith(rank + ".") and len(name) > len(rank) + 1):
            return
    raise ValueError(
        f"memory scope {name!r}: not a scope that TVM knows; it must be a rank or 'rank.tag' with "
        f"a rank of {', '.join(STORAGE_RANKS)}"
    )


def _check_positive(scope: MemoryScope, field: str, value: object) -> None:
    if not is_byte_count(value):
        raise ValueError(f"memory scope {scope.name!r}: {field} must be an integer, got {value!r}")
    if isinstance(value, int) and value <= 0:
        raise ValueError(f"memory scope {scope.name!r}: {field} must be positive, got {value}")


def _check_alignment(scope: MemoryScope) -> None:
    _check_positive(scope, "alignment", scope.alignment)
    if scope.alignment & (scope.alignment - 1):
        raise ValueError(
            f"memory scope {scope.name!r}: alignment must be a power of two, got {scope.alignment}"
        )


def _check_capacity(scope: MemoryScope) -> None:
    if scope.capacity is None:
        return
    _check_positive(scope, "capacity", scope.capacity)
    if scope.capacity < scope.alignment:
        raise ValueError(
            f"memory scope {scope.name!r}: capacity of {scope.capacity} bytes is below its "
            f"alignment of {scope.alignment} bytes"
        )


def _check_banks(scope: MemoryScope) -> None:
    _check_positive(scope, "bank_count", scope.bank_count)
    if scope.bank_bytes is None:
        if scope.bank_count > 1:
            raise ValueError(
                f"memory scope {scope.name!r}: {scope.bank_count} banks need bank_bytes"
            )
        return
    _check_positive(scope, "bank_bytes", scope.bank_bytes)
    if scope.capacity is None:
        raise ValueError(f"memory scope {scope.name!r}: banks need a capacity")
    total = scope.bank_count * scope.bank_bytes
    if total != scope.capacity:
        raise ValueError(
            f"memory scope {scope.name!r}: {scope.bank_count} banks of {scope.bank_bytes} bytes "
            f"are {total} bytes, the capacity is {scope.capacity}"
        )


def _checked_reserved(scope: MemoryScope) -> tuple[ByteRange, ...]:
    """Return the reserved ranges sorted, or say which one is wrong."""
    where = f"memory scope {scope.name!r}: reserved range"
    ranges = []
    for entry in scope.reserved:
        if len(entry) != 2 or not all(is_byte_count(bound) for bound in entry):
            raise ValueError(f"{where} must be two integers (begin, end), got {entry!r}")
        begin, end = entry
        if begin < 0 or end <= begin:
            raise ValueError(f"{where} [{begin}, {end}) is empty or negative")
        if scope.capacity is not None and end > scope.capacity:
            raise ValueError(f"{where} [{begin}, {end}) ends above the capacity {scope.capacity}")
        ranges.append((begin, end))
    ranges.sort()
    for (begin, end), (next_begin, next_end) in pairwise(ranges):
        if next_begin < end:
            raise ValueError(f"{where}s [{begin}, {end}) and [{next_begin}, {next_end}) overlap")
    return tuple(ranges)
