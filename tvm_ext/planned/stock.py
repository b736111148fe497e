# SPDX-License-Identifier: Apache-2.0
"""TVM's own plans, as its passes leave them, beside those of our planners.

TVM's passes decide which tensors share a whole allocation; where an allocation comes to lie is up
to the runtime. So a stock plan shows the allocations one after another, each aligned as its buffers
ask for; its peak is their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from passes.planning import Plan, Problem, Status, charge, verify
from target_hw.memory import settle
from tvm_ext.named_planners import STOCK


@dataclass
class StockAllocation:
    """One allocation that a stock pass leaves."""

    size: int  # Bytes
    offsets: dict[str, int]  # Where the buffers in it begin, in bytes from its start


def stock_plan(
    problem: Problem, pieces: Iterable[StockAllocation], stock_pass: str, function: str
) -> Plan:
    """Lay the allocations that a stock pass left with a problem's buffers one after another.

    Whether the plan keeps the problem's rules is not looked at, only whether it fits. Raises
    ValueError when a buffer has several slots, which TVM's passes do not know.
    """
    for buffer in problem.buffers:
        if buffer.slots > 1:
            raise ValueError(
                f"function {function!r}: buffer {buffer.name!r} in {problem.memory.name} has "
                f"{buffer.slots} slots, and TVM's {stock_pass} plans one; leave out {STOCK!r}"
            )
    offsets: dict[str, tuple[int, ...]] = {}
    top = 0
    for piece in pieces:
        inside = [b for b in problem.buffers if b.name in piece.offsets]
        if not inside:
            continue
        alignment = math.lcm(*(problem.alignment_of(buffer) for buffer in inside))
        begin = settle(top, piece.size, alignment, sorted(problem.memory.reserved))
        offsets |= {b.name: (begin + piece.offsets[b.name],) for b in inside}
        top = begin + piece.size
    fits = problem.capacity is None or top <= problem.capacity
    plan = Plan(offsets, top, 0, stock_pass, Status.FEASIBLE if fits else Status.NOT_FOUND)
    return replace(plan, penalty=sum(charge(problem, plan, p) for p in problem.penalties))


def remark(problem: Problem, plan: Plan) -> str:
    """Say what a stock plan is, and the first rule of the problem that it breaks, if it does.

    Its status says whether it fits.
    """
    # An allocation may end above all that is shown of it.
    highest = max((plan.offsets[b.name][0] + b.size for b in problem.buffers), default=0)
    found = verify(problem, replace(plan, peak=highest))
    broken = [one.message for one in found if one.kind != "capacity"]
    text = "TVM's allocations, one after another"
    return f"{text}; {broken[0]}" if broken else text
