# SPDX-License-Identifier: Apache-2.0
"""A memory map as data: what is to be drawn of a problem and its plan, and on which scale."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from types import MappingProxyType

from passes.planning import Plan, Problem, live_bytes, lower_bound
from tvm_ext.drawing.picture import BOUND_INK, INK, PEAK_INK
from tvm_ext.planned_memory import verdict
from tvm_ext.text import format_bytes


class Role(Enum):
    """The part of a buffer in the height of a plan; the value is what a legend says of it."""

    FULLEST = "live when the most bytes are live"
    TOP = "reaches the peak at another time"
    OTHER = "all other buffers"


ROLE_COLOURS = {Role.FULLEST: "#ee8866", Role.TOP: "#eedd88", Role.OTHER: "#8cc8ee"}
"""Colours that carry black text, and differ for colour-blind readers and in grey.

After Paul Tol's light colours (SRON/EPS/TN/09-002).
"""


def role_finder(problem: Problem, plan: Plan) -> Callable[[int, int, int], Role]:
    """Return what tells the role of a rectangle on the map of a plan.

    It takes the first position of a live range, the one past its last, and the byte past the end of
    the buffer. The most bytes may be live at several times.
    """
    changes = live_bytes(problem)
    most = max((live for _, live in changes), default=0)
    fullest = [(begin, end) for (begin, live), (end, _) in pairwise(changes) if live == most]
    ends = [end for _, end in fullest]

    def role(begin: int, end: int, high: int) -> Role:
        at = bisect_left(ends, begin + 1)  # The first fullest time that ends after `begin`.
        if at < len(fullest) and fullest[at][0] < end:
            return Role.FULLEST
        return Role.TOP if high == plan.peak else Role.OTHER

    return role


@dataclass(frozen=True)
class Slot:
    """A slot during one live range: positions ``[begin, end)``, bytes ``[low, high)``."""

    label: str
    begin: int
    end: int
    low: int
    high: int
    role: Role = Role.OTHER
    buffer: str = ""  # The name in its problem, which no other has; labels may be the same

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The rectangle: positions across, bytes up."""
        return self.begin, self.low, self.end, self.high


@dataclass(frozen=True)
class Level:
    """A number of bytes drawn as a line right across a map."""

    name: str
    value: int
    colour: str
    dashes: str | tuple[int, tuple[float, ...]]
    width: float
    size: str = ""  # The value in words

    def text(self, scale: Scale) -> str:
        """Return what stands beside the line; an arrow says that it lies above the map."""
        return f"{self.name}\n{self.size}" + ("" if self.value <= scale.top else " ↑")


@dataclass(frozen=True)
class Scale:
    """What the axes show: positions ``[begin, end)``, bytes ``[0, top)``."""

    begin: int
    end: int
    top: int


class Panel:
    """One map, as data."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        title: str | None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(problem, Problem) or not isinstance(plan, Plan):
            raise TypeError(f"a map needs a Problem and a Plan, got {problem!r} and {plan!r}")
        self.problem, self.plan = problem, plan
        self.title = f"{problem.name}: {plan.planner}" if title is None else title
        self.slots = list(slots_of(problem, plan, labels or {}))
        self.shared = list(_shared_in_place(problem, plan))
        self.bound = lower_bound(problem)
        self.extent = Scale(
            min((begin for b in problem.buffers for begin, _ in b.live), default=0),
            max((end for b in problem.buffers for _, end in b.live), default=1),
            max(plan.peak, self.bound, 1),
        )

    @property
    def summary(self) -> str:
        """What stands below the title, in a line."""
        count = len(self.problem.buffers)
        parts = [f"{count:,} buffer{'' if count == 1 else 's'}"]
        if self.bound and self.plan.peak > self.bound:
            parts.append(f"{_ratio(self.plan.peak, self.bound)} × the lower bound")
        if self.plan.penalty:
            parts.append(f"penalty {self.plan.penalty:,}")
        parts.append(verdict(self.problem, self.plan))
        return " · ".join(parts)

    @property
    def levels(self) -> list[Level]:
        """The lines, from the lowest up; equal values are one line with all their names."""
        levels = [
            Level("lower bound", self.bound, BOUND_INK, (0, (1.2, 1.4)), 1.5),
            Level("peak", self.plan.peak, PEAK_INK, (0, (5, 2)), 1.3),
        ]
        if self.problem.capacity is not None:
            levels.append(Level("capacity", self.problem.capacity, INK, "solid", 1.6))
        joined: list[Level] = []
        for level in sorted(levels, key=lambda level: level.value):
            if joined and joined[-1].value == level.value:
                level = replace(level, name=f"{level.name} =\n{joined.pop().name}")
            joined.append(level)
        sizes = _told_apart([level.value for level in joined])
        return [replace(level, size=size) for level, size in zip(joined, sizes, strict=True)]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that slots have here, in the order in which a legend names them."""
        found = {slot.role for slot in self.slots}
        return tuple(role for role in Role if role in found)


def slots_of(
    problem: Problem, plan: Plan, labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Slot]:
    """Yield each slot of each buffer that has bytes, in each of its live ranges.

    `labels` say what to call a buffer, by its name. Raises ValueError when the plan lacks an offset
    for a slot.
    """
    role = role_finder(problem, plan)
    for buffer in problem.buffers:
        offsets = plan.offsets.get(buffer.name, ())
        if len(offsets) < buffer.slots or (len(offsets) > buffer.slots and not buffer.may_widen):
            raise ValueError(
                f"{problem.name}: buffer {buffer.name!r} has {buffer.slots} slots, "
                f"the plan has {len(offsets)} offsets for it"
            )
        for slot, low in enumerate(offsets if buffer.size else ()):
            name = labels.get(buffer.name) or buffer.name
            label = name if len(offsets) == 1 else f"{name}[{slot}]"
            high = low + buffer.size
            for begin, end in buffer.live:
                yield Slot(label, begin, end, low, high, role(begin, end, high), buffer.name)


def _shared_in_place(problem: Problem, plan: Plan) -> Iterator[Slot]:
    """Yield where an in-place pair shares bytes while both are live, as slots of the destination.

    A pair that the plan keeps apart shares nothing.
    """
    for names in problem.in_place:
        source, destination = (problem.buffers[problem.index[name]] for name in names)
        ours, theirs = plan.offsets[source.name], plan.offsets[destination.name]
        for low, other in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
            high = low + min(source.size, destination.size)
            for begin, end in source.live if low == other and low < high else ():
                for other_begin, other_end in destination.live:
                    common = max(begin, other_begin), min(end, other_end)
                    if common[0] < common[1]:
                        yield Slot(destination.name, *common, low, high)


def uncovered(slots: Iterable[Slot], shared: Iterable[Slot]) -> Iterator[Slot]:
    """Yield the slots without what they share in place at their beginning or end."""
    at_offset: defaultdict[int, list[Slot]] = defaultdict(list)
    for place in shared:
        at_offset[place.low].append(place)
    for slot in slots:
        begin, end = slot.begin, slot.end
        for place in at_offset.get(slot.low, ()):
            if place.begin == slot.begin:
                begin = max(begin, place.end)
            elif place.end == slot.end:
                end = min(end, place.begin)
        if begin < end:
            yield replace(slot, begin=begin, end=end)


def common_scale(panels: Sequence[Panel]) -> Scale:
    """Return one scale for all panels.

    A capacity counts when it is at most twice as high as everything else: a map of a few KiB in a
    memory of many GiB would be a line at the bottom.
    """
    top = max(panel.extent.top for panel in panels)
    capacities = [p.problem.capacity for p in panels if p.problem.capacity is not None]
    top = max([top, *(capacity for capacity in capacities if capacity <= 2 * top)])
    return Scale(
        min(panel.extent.begin for panel in panels),
        max(panel.extent.end for panel in panels),
        top + -(-top // 40),
    )


def _told_apart(values: Sequence[int]) -> list[str]:
    """Return numbers of bytes in words, exact where rounding would make two of them look equal."""
    rounded = [format_bytes(value) for value in values]
    return [
        text if rounded.count(text) == 1 else f"{value:,} B"
        for value, text in zip(values, rounded, strict=True)
    ]


def _ratio(value: int, bound: int) -> str:
    """Return a ratio above one with as many digits as show that it is above one."""
    ratio = value / bound
    digits = 2 if ratio < 100 else 0
    while f"{ratio:.{digits}f}" == f"{1:.{digits}f}" and digits < 6:
        digits += 1
    return f"{ratio:.{digits}f}"
