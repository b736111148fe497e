# SPDX-License-Identifier: Apache-2.0
"""The order of operators in which the least memory is live: beam search that grows into a proof.

A state of the search is the set of operators that have run. The bytes live after it are known from
the set alone, and as a function of the set it is submodular: an operator adds to a larger set no
more than to a smaller one. So where some operators run within the limit and leave no more bytes
live than there were, and fewer nowhere on the way, they may run at once, and nothing else has to be
tried (`_children` says how far this is looked for).

The search asks for an order below a limit, by the number of operators that have run, and keeps the
states of least live bytes of each number. It lowers the limit with each order that it finds, and
keeps more states where it finds none. Where none had to be dropped, no order is below the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from passes.order.planning.operator_graph import (
    FoundOrder,
    OperatorFacts,
    OrderProblem,
    as_set,
    facts_of,
    late_moved,
    least_live,
    live_bytes,
    mirrored,
    peak_of,
    window_of,
)
from passes.planning import Budget, BudgetTracker

FIRST_WIDTH = 1  # States of one number of operators that the search keeps at first
GROWTH = 8  # The factor by which it keeps more next
WINDOW = 128  # Operators of a long order that are reordered at a time
LEAST_NODES, MOST_NODES, NODES_OPERATORS = 60_000, 500_000, 14_000_000
"""Steps that a search may try by default: about a second. A step takes longer where there are more
operators, so that steps times operators is the third number, between the other two."""


def default_budget(problem: OrderProblem) -> Budget:
    """Return how much is searched by default: the same steps on every machine."""
    nodes = NODES_OPERATORS // max(1, len(problem.before))
    return Budget(max(LEAST_NODES, min(MOST_NODES, nodes)))


def find_order(problem: OrderProblem, budget: Budget | None = None) -> FoundOrder:
    """Return the order of the lowest peak that is found, or the written one where none is lower.

    It is searched forwards and backwards in turns: where many operators are ready at once from one
    end, the other end may know which of them have to be last.
    """
    meter = BudgetTracker(budget or default_budget(problem))
    order = tuple(range(len(problem.before)))
    peak = peak_of(problem, order)
    ways = [facts_of(problem)]
    least = least_live(ways[0])
    bound = max(problem.floor, problem.base, *least)
    if peak > bound:
        ways.append(facts_of(mirrored(problem)))
        order = min(order, late_moved(ways[0]), key=lambda each: peak_of(problem, each))
        peak = peak_of(problem, order)
    backwards, width, repairs = 0, FIRST_WIDTH, len(order) > WINDOW
    while peak > bound:
        if repairs:
            lower = _repaired(problem, order, peak - 1, meter)
            repairs = lower is not None
        else:
            lower, tried_all = _order_within(ways[backwards], peak - 1, width, meter)
            if lower is not None:
                lower = _turned(lower) if backwards else lower
                repairs = len(order) > WINDOW
            elif tried_all:
                bound = peak
            elif not meter.left:
                break
            else:
                width *= GROWTH if backwards else 1
                backwards = 1 - backwards
        if lower is not None:
            order, peak = lower, peak_of(problem, lower)
    needs = least.index(bound) if bound in least else None
    return FoundOrder(order, peak, bound, needs, meter.used)


def _turned(order: Sequence[int]) -> tuple[int, ...]:
    """Return an order of a mirrored problem as one of the problem."""
    return tuple(len(order) - 1 - operator for operator in reversed(order))


def _repaired(
    problem: OrderProblem, order: tuple[int, ...], limit: int, meter: BudgetTracker
) -> tuple[int, ...] | None:
    """Bring a long order within a limit by reordering a window around each place that is above it.

    None where a window has no such order that is found soon.
    """
    while meter.left:
        live = live_bytes(problem, order)
        worst = max(range(len(order)), key=lambda position: live[position])
        if live[worst] <= limit:
            return order
        begin, end = max(0, worst - WINDOW // 2), worst + WINDOW // 2
        inner, members = window_of(problem, order, begin, end), sorted(order[begin:end])
        for backwards, width in product((0, 1), (FIRST_WIDTH, FIRST_WIDTH * GROWTH)):
            facts = facts_of(mirrored(inner) if backwards else inner)
            found, _ = _order_within(facts, limit, width, meter)
            if found is not None:
                found = _turned(found) if backwards else found
                order = (*order[:begin], *(members[one] for one in found), *order[end:])
                break
        else:
            return None
    return None


@dataclass(frozen=True, eq=False)
class _Prefix:
    """Operators that have run, and the last ones of them."""

    done: int
    live: int  # Bytes
    ready: tuple[int, ...]  # The operators that may be next, sorted
    ran: tuple[int, ...] = ()  # The last ones, in their order
    parent: _Prefix | None = None  # The prefix that these operators follow


def _order_within(
    facts: OperatorFacts, limit: int, width: int, meter: BudgetTracker
) -> tuple[tuple[int, ...] | None, bool]:
    """Return an order whose peak is within a limit, or None, and whether nothing was left out."""
    count = len(facts.above)
    everything = (1 << count) - 1
    begun = sum(tensor.size for tensor in facts.problem.tensors if tensor.begun)
    ready = [
        number
        for number, waits_for in enumerate(facts.waits_for)
        if not waits_for and not facts.late >> number & 1
    ]
    levels: list[dict[int, _Prefix]] = [{} for _ in range(count + 1)]
    first = _Prefix(0, facts.problem.base + begun, tuple(ready))
    if first.live > limit:
        return None, True
    first = _settled(facts, first, ready, limit)
    levels[first.done.bit_count()][first.done] = first
    complete = True
    for level in levels:
        states = list(level.values())
        level.clear()
        if len(states) > width:
            complete = False
            states = sorted(states, key=lambda state: state.live)[:width]
        for state in states:
            if state.done == everything:
                return _order_of(state), complete
            meter.spend(len(state.ready))
            if not meter.left:
                return None, False
            for child in _children(facts, state, limit):
                levels[child.done.bit_count()].setdefault(child.done, child)
    return None, complete


def _order_of(state: _Prefix | None) -> tuple[int, ...]:
    steps = []
    while state is not None:
        steps.append(state.ran)
        state = state.parent
    return tuple(operator for ran in reversed(steps) for operator in ran)


def _children(facts: OperatorFacts, state: _Prefix, limit: int) -> list[_Prefix]:
    """Return the states that may follow; one alone where no other has to be tried.

    That one has no more bytes live than before, and all that ran on the way to it waits for the
    operator that ran first: then no set of operators on the way has fewer bytes.
    """
    children = []
    for operator in state.ready:
        child = _after(facts, state, operator, limit)
        if child is None:
            continue
        child = _settled(facts, child, facts.wakes[operator], limit)
        if child.live <= state.live:
            expected = facts.below[operator] | 1 << operator | facts.late
            if not as_set(child.ran) & ~expected:
                return [child]
        children.append(child)
    return children


def _settled(facts: OperatorFacts, state: _Prefix, woken: Sequence[int], limit: int) -> _Prefix:
    """Run the operators that free at least what they make, of those that may newly do so."""
    waiting = list(woken)
    while waiting:
        operator = waiting.pop(0)
        if operator not in state.ready:
            continue
        after = _after(facts, state, operator, limit, at_most=state.live)
        if after is not None:
            state = after
            waiting += [one for one in facts.wakes[operator] if one not in waiting]
    return state


def _after(
    facts: OperatorFacts, state: _Prefix, operator: int, limit: int, at_most: int | None = None
) -> _Prefix | None:
    """Return a state with one operator more, and those that it needs.

    None where the limit is passed on the way, or where more than `at_most` bytes live afterwards.
    """
    done, live = state.done, state.live
    ran = [one for one in facts.brings[operator] if not done >> one & 1]
    ran.append(operator)
    for one in ran:
        before, done = done, done | 1 << one
        ended = 0
        for members, size, begun, kept in facts.touches[one]:
            if not begun and not members & before:
                live += size
            if not kept and not members & ~done:
                ended += size
        if live > limit:
            return None
        live -= ended
    if at_most is not None and live > at_most:
        return None
    ready = [one for one in state.ready if one != operator]
    for one in facts.wakes[operator]:
        if not facts.waits_for[one] & ~done and not done >> one & 1 and one not in ready:
            ready.append(one)
    ready.sort()
    extends = at_most is not None
    return _Prefix(
        done,
        live,
        tuple(ready),
        (*state.ran, *ran) if extends else tuple(ran),
        state.parent if extends else state,
    )
