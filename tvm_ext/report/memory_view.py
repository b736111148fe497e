# SPDX-License-Identifier: Apache-2.0
"""A memory of a program with its plans: what each reader finds, and each view shows.

TVM's own plan is one of the plans. TVM's passes decide which tensors share a whole allocation, and
its runtime where that comes to lie: such a plan shows the allocations one after another, aligned as
their buffers ask for. This module knows no TVM.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from passes.planning import (
    Budget,
    Plan,
    Problem,
    Solver,
    Status,
    TextPlaces,
    charge,
    check,
    does_not_fit,
    live_together,
    lower_bound,
    solve,
    verify,
)
from passes.simulation import Simulation
from target_hw.memory import settle
from tvm_ext.named_planners import STOCK

BUILT = "as built"
"""The name of the plan that a pass writes, where that is not its planner's own."""


@dataclass(frozen=True)
class Peak:
    """The positions where a plan is at its highest."""

    # The positions with the most bytes in use, each with other live bytes than the one before,
    # among those at which a buffer reaches the plan's peak; of TVM's own plan, among all.
    places: tuple[int, ...]
    live: tuple[str, ...]  # The buffers live at the first, largest first, all slots counted
    occupied: int  # Bytes in use there; bytes shared in place count once
    # The most bytes in use at any other position, and the first such position
    below: tuple[int, int] | None


class Slot(NamedTuple):
    """A slot of a buffer in one of its live ranges."""

    buffer: int  # The buffer's place in the problem
    number: int
    low: int  # Its first byte, and the one after its last
    high: int
    begin: int  # The live range
    end: int
    # The part of the live range in which no live buffer that is in place with it has its bytes;
    # where there is none, the part until the buffer whose bytes it takes over ends
    first: int
    last: int


@dataclass(frozen=True)
class PlannedProblem:
    """A plan, with the problem that it solves, and what is known of it."""

    planner: str  # The planner that was asked; `plan.planner` is the one that it asked in turn
    problem: Problem
    plan: Plan  # Possibly above the capacity
    seconds: float = field(default=0.0, compare=False)  # Time that the planner took
    # The lower bound of plans in whole slots, for a device that takes no other plans
    bound_of_form: int | None = None
    # Whether a stock plan has the offsets of a runtime, which lays its buffers out itself; else a
    # pass of TVM left allocations, which lie here one after another
    has_offsets: bool = False

    @property
    def label(self) -> str:
        """The planner that was asked, and in brackets the planner that it asked in turn."""
        asked, made = self.planner, self.plan.planner
        return asked if asked == made else f"{asked} ({made})"

    @cached_property
    def bound(self) -> int:
        """Bytes that no plan's peak can be below."""
        return lower_bound(self.problem) if self.bound_of_form is None else self.bound_of_form

    @cached_property
    def proven(self) -> str:
        """The regard in which no plan is better; empty where nothing is proven.

        ``lowest peak``; ``least penalty``, for which a plan may need a higher peak; ``least penalty
        and peak``; or ``nothing fits``.
        """
        plan, lowest = self.plan, self.plan.peak == self.bound
        if plan.status is Status.INFEASIBLE:
            return "nothing fits"
        is_optimal = plan.status is Status.OPTIMAL
        if self.problem.penalties and (is_optimal or (plan.fits and plan.penalty == 0)):
            return "least penalty and peak" if lowest else "least penalty"
        return "lowest peak" if lowest or (is_optimal and not self.problem.penalties) else ""

    @property
    def verdict(self) -> str:
        """A few words on whether the plan fits, and on what is proven of it."""
        if not self.plan.fits:
            return "does not fit, as no plan does" if self.proven else "does not fit"
        return f"{self.proven} (proven)" if self.proven else "a better plan may exist"

    @property
    def remark(self) -> str:
        """A few words on a plan of TVM's passes, with the first rule that it breaks; else empty."""
        if self.planner != STOCK or self.has_offsets:
            return ""
        # An allocation may end above all that is shown of it.
        ends = (self.plan.offsets[b.name][0] + b.size for b in self.problem.buffers)
        found = verify(self.problem, replace(self.plan, peak=max(ends, default=0)))
        broken = [one.message for one in found if one.kind != "capacity"]
        return "; ".join(["TVM's allocations, one after another", *broken[:1]])

    def said(self) -> list[str]:
        """Return what there is to know of the plan besides its peak, in a few words each."""
        penalty = f"penalty {self.plan.penalty:,}" if self.plan.penalty else ""
        return [text for text in (self.verdict, self.remark, penalty) if text]

    def slots(self) -> tuple[list[Slot], list[tuple[int, int, int, int]]]:
        """Return where each slot lies, and where two that are live in place share bytes.

        The latter by begin, first byte, end, and byte after the last. Raises ValueError, with the
        buffer, where the plan lacks an offset.
        """
        found: list[Slot] = []
        of: defaultdict[str, list[int]] = defaultdict(list)
        for at, buffer in enumerate(self.problem.buffers):
            offsets = self.plan.offsets.get(buffer.name, ())
            if len(offsets) < buffer.slots or (
                len(offsets) > buffer.slots and not buffer.may_widen
            ):
                raise ValueError(
                    f"{self.problem.name}: buffer {buffer.name!r} has {buffer.slots} slots, "
                    f"the plan has {len(offsets)} offsets for it"
                )
            for number, low in enumerate(offsets if buffer.size else ()):
                for live in buffer.live:
                    of[buffer.name].append(len(found))
                    found.append(Slot(at, number, low, low + buffer.size, *live, *live))
        shared = []
        for source, result in self.problem.in_place:
            for one, two in ((one, two) for one in of[source] for two in of[result]):
                a, b = found[one], found[two]
                begin, end = max(a.begin, b.begin), min(a.end, b.end)
                if a.low == b.low and begin < end:
                    shared.append((begin, a.low, end, min(a.high, b.high)))
                    found[one] = a._replace(last=min(b.begin, a.last))
                    found[two] = b._replace(first=max(a.end, b.first))
        for at, slot in enumerate(found):
            if slot.first >= slot.last:
                last = min(slot.first, slot.end) if slot.first > slot.begin else slot.end
                found[at] = slot._replace(first=slot.begin, last=last)
        return found, shared

    def peak(self) -> Peak:
        """Find where the plan is at its highest."""
        changes: defaultdict[int, list[tuple[int, Slot]]] = defaultdict(list)
        slots, _ = self.slots()
        for slot in slots:
            changes[slot.begin].append((1, slot))
            changes[slot.end].append((-1, slot))
        top = max((slot.high for slot in slots), default=0)
        # TVM's own allocations reach the peak at no position of their own.
        at_top = int(self.planner == STOCK and not self.has_offsets)
        live, used, steps = dict[Slot, None](), 0, []
        for at in sorted(changes):
            for sign, slot in sorted(changes[at]):  # First those that end
                at_top += sign * (slot.high == top)
                used += sign * (slot.high - slot.low)
                if sign > 0:
                    live[slot] = None
                else:
                    del live[slot]
            # Else nothing that is live shares bytes.
            steps.append((at, _union(live) if self.problem.in_place else used, at_top > 0))
        most = max((used for _, used, highest in steps if highest), default=0)
        places = tuple(at for at, used, highest in steps if highest and used == most) or (0,)
        others = ((at, used) for at, used, highest in steps if not (highest and used == most))
        at, below = max(others, key=lambda step: step[1], default=(0, 0))
        here = (places[0], places[0] + 1)
        found = [b for b in self.problem.buffers if live_together(b.live, (here,))]
        found.sort(key=lambda b: (-b.size * len(self.plan.offsets[b.name]), b.name))
        names = tuple(b.name for b in found)
        return Peak(places, names, most, (below, at) if below else None)


@dataclass(frozen=True)
class Axis(TextPlaces):
    """The axis of time of a memory: the lines of a function, and where its positions are in them.

    Lines are statements of a script, bindings, epochs, time steps or instructions.
    """

    name: str  # The function's name
    rules: tuple[int, ...] = ()  # The lines with a rule above them, across all plans: barriers
    # The layer and the operator that each line is of, as ``layers.0.mlp gelu``; empty for none
    labels: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        lines = {"name": self.name, "lines": self.lines, "lineOf": self.line_of}
        return {**lines, "rules": self.rules, "labels": self.labels}


@dataclass(frozen=True)
class BufferNote:
    """The facts about a buffer besides its problem."""

    label: str = ""  # A shorter name; empty for the buffer's own
    type: str = ""  # The type of its elements and its shape
    what: str = ""  # The operator that makes it, or the role that it has
    allocated: int | None = None  # The line that allocates it
    reads: tuple[int, ...] = ()  # The lines that read it
    writes: tuple[int, ...] = ()  # The lines that write it
    pipes: tuple[str, ...] = ()  # The pipelines that touch it, sorted


Text = tuple[Axis | None, Mapping[str, BufferNote]]
"""The text of a function, where it has one, and notes by the names of buffers."""


def written(
    axis: Axis | None = None, notes: Mapping[str, BufferNote] | None = None
) -> Callable[[], Text]:
    """Return a function that returns a text that is written already."""
    return lambda: (axis, notes or {})


@dataclass(frozen=True, eq=False)
class MemoryView:
    """One memory of one function, with the plans of its buffers."""

    owner: str  # The function's name, or the file's
    plans: tuple[PlannedProblem, ...]  # At least one. All have the same buffers.
    # Returns the function's text, which takes time to write, and which tables do without
    read: Callable[[], Text] | None = None
    # The contents of the memory, if not all buffers of its scope: tensors of fused operators
    holds: str = ""
    rules: str = ""  # For messages: the rules of the target that the lower bound rests on
    form: str = ""  # Of a network: in which form the device takes a plan, and why
    unit: str = ""  # Bytes are for each of this product of symbolic dimensions; empty for bytes
    unit_name: str = ""  # The same with the inputs and axes that give the dimensions

    @cached_property
    def _text(self) -> Text:
        return (None, {}) if self.read is None else self.read()

    @property
    def axis(self) -> Axis | None:
        """The function's text, where it has one."""
        return self._text[0]

    @property
    def notes(self) -> Mapping[str, BufferNote]:
        """Notes by the names of buffers."""
        return self._text[1]

    @property
    def problem(self) -> Problem:
        """The problem of the first plan."""
        return self.plans[0].problem

    @property
    def scope(self) -> str:
        """The storage scope."""
        return self.problem.memory.name

    @property
    def name(self) -> str:
        """The contents of the memory; or the storage scope, and its place in the function."""
        if self.holds:
            return self.holds
        return self.problem.name if self.problem.name.startswith(self.scope) else self.scope

    @property
    def bound(self) -> int:
        """Bytes that no plan's peak can be below."""
        return self.plans[0].bound

    def plan_of(self, planner: str) -> PlannedProblem:
        """Return the plan of a planner; KeyError if it was not asked."""
        return {planned.planner: planned for planned in self.plans}[planner]

    def explain(self, planned: PlannedProblem) -> str:
        """Say why a plan does not fit, and what would help; empty if it does."""
        if planned.plan.fits:
            return ""
        return does_not_fit(planned.problem, planned.plan, places=self.axis, rules=self.rules)

    def lines_of(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the first and the last line of each live range of a buffer."""
        if self.axis is not None:
            for begin, end in self.problem.buffers[self.problem.index[name]].live:
                yield self.axis.span(begin, end)


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A function, run in simulation with its buffers where a planner put them."""

    function: str  # Its name
    planner: str
    simulation: Simulation


@dataclass(frozen=True)
class LeftAlone:
    """A buffer or tensor that is not planned."""

    owner: str  # The function's name
    name: str
    reason: str
    scope: str = ""
    what: str = "buffer"  # Or tensor, or layer

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.owner}: {self.name}: {self.reason}"


class Fault(str):
    """A note that something is wrong: the command's exit status is 1 then."""


def planned(
    problem: Problem, planner: str, budget: Budget | None = None, *, solver: Solver | None = None
) -> PlannedProblem:
    """Solve a problem by a planner, or by `solver` in its name; a plan that fits is verified."""
    begin = time.perf_counter()
    plan = solve(problem, planner, budget) if solver is None else solver(problem)
    seconds = time.perf_counter() - begin
    if plan.fits and planner != STOCK:  # A view says which rule a plan of TVM's breaks.
        check(problem, plan)
    return PlannedProblem(planner, problem, plan, seconds)


def _union(slots: Iterable[Slot]) -> int:
    """Return how many bytes belong to at least one of the slots."""
    occupied = reached = 0
    for begin, end in sorted((slot.low, slot.high) for slot in slots):
        occupied += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return occupied


# ---------------------------------------------------------------------------- TVM's own plans

StockAllocation = tuple[int, dict[str, int]]
"""An allocation that a stock pass leaves: its bytes, and where in it the buffers begin."""


def stock_plan(
    problem: Problem, pieces: Iterable[StockAllocation], stock_pass: str, function: str
) -> Plan:
    """Lay the allocations that a stock pass left with a problem's buffers one after another.

    The problem's rules are not looked at, only whether the plan fits. Raises ValueError when a
    buffer has several slots, which TVM's passes do not know.
    """
    for buffer in problem.buffers:
        if buffer.slots > 1:
            raise ValueError(
                f"function {function!r}: buffer {buffer.name!r} in {problem.memory.name} has "
                f"{buffer.slots} slots, and TVM's {stock_pass} plans one"
            )
    offsets: dict[str, tuple[int, ...]] = {}
    top = 0
    for size, begins in pieces:
        inside = [buffer for buffer in problem.buffers if buffer.name in begins]
        if inside:
            alignment = math.lcm(*(problem.alignment_of(buffer) for buffer in inside))
            begin = settle(top, size, alignment, sorted(problem.memory.reserved))
            offsets |= {b.name: (begin + begins[b.name],) for b in inside}
            top = begin + size
    fits = problem.capacity is None or top <= problem.capacity
    plan = Plan(offsets, top, 0, stock_pass, Status.FEASIBLE if fits else Status.NOT_FOUND)
    return replace(plan, penalty=sum(charge(problem, plan, p) for p in problem.penalties))
