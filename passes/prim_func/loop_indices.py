# SPDX-License-Identifier: Apache-2.0
"""Which elements an access in loops reaches: its index is read as an affine sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.sym import Analyzer, ConstIntBound, detect_linear_equation
from tvm.tirx import For, ForKind, IntImm, Ramp

from passes.ir import items, never_wraps, nodes_in
from passes.ir.operators import is_pure

_MOST = 1 << 30  # Limits of indices beyond this are those of their type: nothing is known


@dataclass(frozen=True, eq=False)
class LoopNest:
    """Loops around an access."""

    loops: Sequence[For]  # Outermost first
    # Variables of the loops that enclose these: constant while these run.
    counters: Sequence[Var] = ()

    def is_injective(self, index: Any) -> bool:
        """Whether an index reaches different elements in different iterations.

        Each loop must move it by more elements than all loops with smaller factors together, as
        the places of a mixed-radix number do. It may be a vector, whose lanes all count.
        """
        ranges = self._ranges()
        found = self._as_sum(index, ranges)
        if found is None:
            return False
        width: float
        factors, width = found
        digits: list[tuple[int, float]] = []
        for loop, factor in zip(self.loops, factors, strict=True):
            step, extent = _step(loop), _limits(ranges, loop.extent)
            if step is None or not names_only(loop.min, self.counters):
                return False
            count = math.inf if extent is None else -(-extent[1] // step)
            if count > 1:
                digits.append((abs(factor * step), count))
        for factor, count in sorted(digits):
            if factor < width:
                return False
            width += factor * (count - 1)
        return True

    def is_ascending(self, index: Any) -> bool:
        """Whether an index reaches consecutive elements in consecutive iterations.

        One step of an outer loop must skip just the elements that the loops inside it count.
        """
        found = self._as_sum(index, self._ranges())
        if found is None or (isinstance(index, Ramp) and index.stride.value != 1):
            return False
        factors, width = found
        digits = []
        for loop, factor in zip(self.loops, factors, strict=True):
            step = _step(loop)
            if loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or step is None:
                return False
            if not isinstance(loop.extent, IntImm) or not names_only(loop.min, self.counters):
                return False
            digits.append((factor * step, -(-loop.extent.value // step)))
        for factor, count in reversed(digits):
            if count > 1 and factor != width:
                return False
            width *= max(count, 1)
        return True

    def _as_sum(self, index: Any, ranges: Analyzer) -> tuple[list[int], int] | None:
        """Return by how many elements an index moves with each loop, and how many it spans itself.

        An index of one element spans one, a vector those from its first lane to its last. None if
        the index is not affine.
        """
        width = 1
        if isinstance(index, Ramp):
            if not isinstance(index.stride, IntImm) or not isinstance(index.lanes, IntImm):
                return None
            if index.stride.value < 1:
                return None
            width, index = index.stride.value * (index.lanes.value - 1) + 1, index.base
        variables = [loop.loop_var for loop in self.loops]
        known = (*variables, *self.counters)
        if index.ty.dtype.lanes != 1 or not names_only(index, known) or not never_wraps(index):
            return None
        *factors, rest = items(detect_linear_equation(ranges.simplify(index), variables)) or [None]
        if rest is None or not all(isinstance(factor, IntImm) for factor in factors):
            return None
        return [int(factor.value) for factor in factors], width

    def _ranges(self) -> Analyzer:
        """Return an analyzer that knows the limits of the loop variables."""
        ranges = Analyzer()
        for loop in self.loops:
            first, last = _limits(ranges, loop.min), _limits(ranges, loop.min + loop.extent - 1)
            if first is not None and last is not None:
                bound = ConstIntBound(first[0], max(first[0], last[1]))
                ranges.update(loop.loop_var, bound, override=True)
        return ranges


def _step(loop: For) -> int | None:
    """Return the constant step of a loop; None if it is not known."""
    if loop.step is None:
        return 1
    return int(loop.step.value) if isinstance(loop.step, IntImm) and loop.step.value > 0 else None


def _limits(ranges: Analyzer, expr: Any) -> tuple[int, int] | None:
    """Return the least and the most that an expression can be; None if that is not known."""
    if not never_wraps(expr):
        return None
    bound = ranges.const_int_bound(ranges.simplify(expr))
    least, most = int(bound.min_value), int(bound.max_value)
    return None if max(abs(least), abs(most)) > _MOST else (least, most)


def names_only(expr: Any, variables: Iterable[Var]) -> bool:
    """Whether an expression depends on nothing but some variables, and reads no memory."""
    known = {var.__chandle__() for var in variables}
    nodes = nodes_in(expr, Var, TensorLoad, Call)
    reads_no_memory = all(type(x) is Call and is_pure(x) for x in nodes if not isinstance(x, Var))
    return reads_no_memory and all(x.__chandle__() in known for x in nodes if isinstance(x, Var))
