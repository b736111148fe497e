# SPDX-License-Identifier: Apache-2.0
"""Checks what users give to passes as options, so that a wrong one is an error at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from target_hw.memory import MemoryHierarchy, is_byte_count


def as_memory(memory: object) -> MemoryHierarchy | None:
    """Check that `memory` is a MemoryHierarchy or None, and return it; ValueError otherwise."""
    if memory is None or isinstance(memory, MemoryHierarchy):
        return memory
    raise ValueError(f"memory must be a MemoryHierarchy, got {memory!r}")


def as_bounds(upper_bounds: object) -> dict[str, int]:
    """Return upper bounds by names; ValueError when they map no names to positive integers."""
    if upper_bounds is None:
        return {}
    if not isinstance(upper_bounds, Mapping):
        raise ValueError(f"upper_bounds must map names to integers, got {upper_bounds!r}")
    for name, bound in upper_bounds.items():
        if not isinstance(name, str):
            raise ValueError(f"upper_bounds must name variables by strings, got {name!r}")
        if not is_byte_count(bound) or bound < 1:
            raise ValueError(
                f"the upper bound of {name!r} must be a positive integer, got {bound!r}"
            )
    return dict(upper_bounds)


def check_bound_names(upper_bounds: Mapping[str, int], known: Iterable[str]) -> None:
    """Raise ValueError for an upper bound of a dimension that nothing has."""
    names = sorted(set(known))
    for name in sorted(upper_bounds.keys() - set(names)):
        there = f"there are: {', '.join(names)}" if names else "nothing here is symbolic"
        raise ValueError(f"the upper bound of {name!r} names no symbolic dimension; {there}")


def check_flags(**flags: object) -> None:
    """Raise ValueError, with its name, for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
