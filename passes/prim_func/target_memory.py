# SPDX-License-Identifier: Apache-2.0
"""The memory that a function's target describes or limits."""

from __future__ import annotations

import logging

from passes.ir import PrimFunc, name_of, target_kind, target_of
from passes.prim_func.problems import ProblemOptions
from target_hw.memory import MemoryHierarchy

EXACT_DTYPE_TARGETS = ("vulkan", "webgpu")
"""Targets that cannot see one piece of memory as two types, so that an arena is of no use there."""

_SHARED, _SHARED_LIMIT = "shared", "max_shared_memory_per_block"

ADDRESS_SPACES = ("opencl", "metal")
"""Targets whose pointers say which memory they point to, and for which TVM writes no alignment."""


def has_exact_dtype(func: PrimFunc) -> bool:
    """Return whether a function's target lets memory be named as one element type only."""
    return target_kind(func) in EXACT_DTYPE_TARGETS


def memory_of(func: PrimFunc) -> MemoryHierarchy | None:
    """Return the memory that a function's own target describes, if it does."""
    target = target_of(func)
    if target is None or target.features.memory is None:
        return None
    return MemoryHierarchy.from_target(target)


def limits_of(func: PrimFunc, *, is_held: bool = False) -> MemoryHierarchy:
    """Return the memories whose size a function's target, one of TVM's own, states.

    If `is_held`, those that a kernel cannot be above; of the others, see `warn_of_limit`.
    """
    target = target_of(func)
    limits = MemoryHierarchy() if target is None else MemoryHierarchy.of_limits(target)
    return MemoryHierarchy(tuple(m for m in limits if not (is_held and m.name == _SHARED)))


def warn_of_limit(func: PrimFunc, scope: str, needed: int, logger: logging.Logger) -> None:
    """Warn if a kernel needs more bytes of shared memory than its own target says a block has.

    TVM does not hold kernels to that number, so none is refused for it.
    """
    target = target_of(func)
    limit = None if target is None or scope != _SHARED else target.attrs.get(_SHARED_LIMIT)
    if target is not None and limit is not None and needed > int(limit):
        text = "function %r: it needs %d bytes of %s, and %s is said to have %d a block"
        logger.warning(text, name_of(func), needed, scope, target.kind.name, int(limit))


def options_of(func: PrimFunc) -> ProblemOptions:
    """Return how a function's allocations are planned where only its target says something."""
    memory = memory_of(func)
    return ProblemOptions(memory=memory, addressed=memory is not None, limits=limits_of(func))
