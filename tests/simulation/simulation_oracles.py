# SPDX-License-Identifier: Apache-2.0
"""A second simulator that shares nothing with ours, and random kernels to hold the two together.

The oracle writes out every run, finds who waits for whom byte by byte, and lets the clock tick.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from passes.planning import Buffer, PipelineUse, Plan, Problem, Status
from passes.simulation import Alternative, Loop, Statement
from target_hw import Machine, MemoryScope, Pipe

MACHINE = Machine(tuple(Pipe(name, "bytes", 1) for name in ("MTE2", "V", "MTE3", "S")))
"""One cycle a unit of work, so that a statement takes as long as its work says."""


def plan_of(offsets, problem):
    ends = [o + b.size for b in problem.buffers for o in offsets[b.name]]
    return Plan(offsets, max(ends, default=0), 0, "by hand", Status.FEASIBLE)


# ------------------------------------------------------------------------------- the oracle


def work_of(steps):
    total = 0
    for step in steps:
        if isinstance(step, Statement):
            total += max(1, step.work)
        elif isinstance(step, Loop):
            total += step.extent * work_of(step.body)
        else:
            total += max(work_of(step.then), work_of(step.otherwise))
    return total


def unrolled(steps, around=()):
    """Yield (statement, {loop: iteration}) in program order."""
    for step in steps:
        if isinstance(step, Statement):
            yield step, dict(around)
        elif isinstance(step, Loop):
            for i in range(step.extent):
                yield from unrolled(step.body, (*around, (step.number, i)))
        elif work_of(step.otherwise) > work_of(step.then):
            yield from unrolled(step.otherwise, around)
        else:
            yield from unrolled(step.then, around)


def predecessors(program, problem, plan):
    """Return the runs, and for each the numbers of those that must have ended before it starts."""
    buffers = {b.name: b for b in problem.buffers}

    def bytes_of(name, iteration):
        offsets = plan.offsets[name]
        turn = iteration[buffers[name].use.loop] % len(offsets) if len(offsets) > 1 else 0
        return range(offsets[turn], offsets[turn] + buffers[name].size)

    runs, before = list(unrolled(program)), []
    last_write, readers = {}, {}
    for number, (statement, iteration) in enumerate(runs):
        waits = set()
        read = [b for name in statement.reads for b in bytes_of(name, iteration)]
        written = [b for name in statement.writes for b in bytes_of(name, iteration)]
        waits |= {last_write[b] for b in read if b in last_write}
        for b in written:
            waits |= readers.get(b, set())
            waits |= {last_write[b]} if b in last_write else set()
        for b in read:
            readers.setdefault(b, set()).add(number)
        for b in written:
            last_write[b], readers[b] = number, set()
        before.append(waits)
    return runs, before


def ticked(program, problem, plan):
    """Return (begin, end) of each run, by letting every pipe look at its queue in each cycle."""
    runs, before = predecessors(program, problem, plan)
    queues = {}
    for number, (statement, _) in enumerate(runs):
        queues.setdefault(statement.pipe, []).append(number)
    begin, end, now = {}, {}, 0
    while len(end) < len(runs) or any(end[n] > now for n in end):
        for queue in queues.values():
            while queue and end.get(queue[0], math.inf) <= now:
                queue.pop(0)
            if queue and queue[0] not in begin:
                number = queue[0]
                if all(other in end and end[other] <= now for other in before[number]):
                    begin[number] = now
                    end[number] = now + max(1, runs[number][0].work)
        now += 1
    return [(begin[n], end[n]) for n in range(len(runs))]


def critical_path(program, problem, plan):
    """Return the cycles of the longest chain of runs that wait for each other, pipes aside."""
    runs, before = predecessors(program, problem, plan)
    ends = []
    for (statement, _), waits in zip(runs, before, strict=True):
        ends.append(max((ends[w] for w in waits), default=0) + max(1, statement.work))
    return max(ends, default=0)


# --------------------------------------------------------------------------- random kernels


@st.composite
def kernels(draw, most_extent=7, branches=True):
    """Return (program, problem): loops up to two deep, buffers with up to three slots."""
    numbers = iter(range(100))
    loops = {}  # number -> those around it

    def tree(around, depth):
        steps = []
        for _ in range(draw(st.integers(1, 4 if depth < 2 else 3))):
            kind = draw(st.sampled_from("ssl" + ("b" if branches else "")))
            if kind == "l" and depth < 2:
                number = next(numbers)
                loops[number] = around
                extent = draw(st.integers(0, most_extent))
                steps.append(Loop(number, extent, tree((*around, number), depth + 1)))
            elif kind == "b" and depth < 2:
                steps.append(Alternative(tree(around, depth + 1), tree(around, depth + 1)))
            else:
                steps.append(around)  # a place for a statement, in these loops
        return tuple(steps)

    shape = tree((), 0)
    homes = [None, *loops]
    buffers = []
    for i in range(draw(st.integers(1, 5))):
        home = draw(st.sampled_from(homes))
        slots = draw(st.integers(1, 3)) if home is not None else 1
        size = draw(st.integers(0, 3))
        use = PipelineUse(loop=home)
        buffers.append(Buffer(f"b{i}", size, ((0, 1),), slots=slots, use=use))

    def filled(steps):
        for step in steps:
            if isinstance(step, Loop):
                yield Loop(step.number, step.extent, tuple(filled(step.body)))
            elif isinstance(step, Alternative):
                yield Alternative(tuple(filled(step.then)), tuple(filled(step.otherwise)))
            else:
                usable = [b.name for b in buffers if b.use.loop is None or b.use.loop in step]
                some = st.lists(st.sampled_from(usable), max_size=2) if usable else st.just([])
                yield Statement(
                    f"s{next(numbers)}",
                    draw(st.sampled_from(("MTE2", "V", "MTE3", "S"))),
                    tuple(draw(some)),
                    tuple(draw(some)),
                    draw(st.integers(0, 6)),
                )

    return tuple(filled(shape)), Problem(tuple(buffers), MemoryScope("local.UB"))


@st.composite
def offsets_of(draw, problem, most_offset=8):
    """Return a plan that need not be right: the simulator takes any. Slots stay apart."""
    offsets = {}
    for buffer in problem.buffers:
        start = draw(st.integers(0, most_offset))
        gap = draw(st.integers(0, 2))
        slots = [start + i * (buffer.size + gap) for i in range(buffer.slots)]
        offsets[buffer.name] = tuple(draw(st.permutations(slots)))
    return plan_of(offsets, problem)


def apart(problem):
    """Return the plan in which nothing shares bytes."""
    offsets, top = {}, 0
    for buffer in problem.buffers:
        offsets[buffer.name] = tuple(top + i * buffer.size for i in range(buffer.slots))
        top += buffer.slots * buffer.size
    return plan_of(offsets, problem)
