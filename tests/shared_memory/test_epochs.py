# SPDX-License-Identifier: Apache-2.0
"""Which buffers an epoch needs: on kernels as plain data, and on what is read off a function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from sweeps import swept

from passes.planning import solve, verify
from passes.planning.buffer import live_together
from passes.shared_memory.planning.epochs import (
    Effect,
    Event,
    EventBranch,
    EventLoop,
    SharedBuffer,
    Step,
    ThreadBlock,
    barriers_to_add,
    find_epochs,
    shared_memory_problem,
)
from target_hw.memory import MemoryScope

MEMORY = MemoryScope("shared")
NAMES = ("a", "b", "c")
BARRIER, COMMIT = Event(Effect.BARRIER), Event(Effect.COMMIT)


def begin(*names: str) -> Event:
    return Event(Effect.BEGIN, names)


def read(*names: str) -> Event:
    return Event(Effect.READ, names)


def write(*names: str) -> Event:
    return Event(Effect.WRITE, names)


def copy(*names: str) -> Event:
    return Event(Effect.COPY, names)


def wait(pending: int) -> Event:
    return Event(Effect.WAIT, pending=pending)


def kernel(*steps: Step, kept: Sequence[str] = ()) -> ThreadBlock:
    used = {name for name in NAMES if name in kept or mentions(steps, name)}
    buffers = tuple(SharedBuffer(name, 64, 4, name in kept) for name in NAMES if name in used)
    return ThreadBlock("shared", buffers, steps)


def inner(step: Step) -> tuple[tuple[Step, ...], ...]:
    """Return the steps within a loop, or within each arm of a branch."""
    if isinstance(step, Event):
        return ()
    return (step.body,) if isinstance(step, EventLoop) else step.arms


def mentions(steps: Sequence[Step], name: str) -> bool:
    return any(
        (isinstance(step, Event) and name in step.buffers)
        or any(mentions(part, name) for part in inner(step))
        for step in steps
    )


def together(given_kernel: ThreadBlock) -> set[str]:
    """Return the pairs of buffers that may not share bytes."""
    buffers = shared_memory_problem(given_kernel, MEMORY).buffers
    pairs = itertools.combinations(buffers, 2)
    return {one.name + two.name for one, two in pairs if live_together(one.live, two.live)}


def phase(name: str) -> tuple[Step, ...]:
    return write(name), BARRIER, read(name)


def test_a_barrier_stands_between_those_that_share():
    assert together(kernel(*phase("a"), BARRIER, *phase("b"))) == set()
    assert together(kernel(*phase("a"), *phase("b"))) == {"ab"}


def test_a_value_waits_through_epochs_that_do_not_touch_it():
    steps = (write("a"), BARRIER, write("b"), BARRIER, read("b"), BARRIER, read("a"))
    assert together(kernel(*steps)) == {"ab"}


def test_between_two_values_the_bytes_are_free():
    steps = (*phase("a"), BARRIER, *phase("b"), BARRIER, begin("a"), *phase("a"))
    assert together(kernel(*steps)) == set()
    assert together(kernel(*(step for step in steps if step.what is not Effect.BEGIN))) == {"ab"}


def test_an_epoch_of_a_loop_may_come_next_after_itself():
    loop = EventLoop((BARRIER, read("a")))
    epochs = find_epochs(kernel(write("a"), loop, BARRIER, write("b")))
    assert [epoch.following for epoch in epochs] == [(1, 2), (1, 2), ()]


def test_the_end_of_a_loop_meets_its_beginning():
    body = (
        begin("a", "b"),
        write("a"),
        BARRIER,
        read("a"),
        BARRIER,
        write("b"),
        BARRIER,
        read("b"),
    )
    assert together(kernel(EventLoop(body))) == {"ab"}
    assert together(kernel(EventLoop((*body, BARRIER)))) == set()


def test_a_value_is_carried_to_the_next_round():
    body = (read("a"), BARRIER, begin("b"), *phase("b"), BARRIER, write("a"), BARRIER)
    assert together(kernel(write("a"), BARRIER, EventLoop(body))) == {"ab"}
    assert together(kernel(begin("a"), EventLoop((begin("a"), *body[1:])))) == set()


def test_nothing_waits_in_front_of_the_first_round():
    before = (write("a"), read("a"))
    assert together(kernel(*before, EventLoop((BARRIER, *phase("b"))))) == set()
    assert together(kernel(*before, EventLoop((write("b"), BARRIER, read("b"), BARRIER)))) == {"ab"}
    inner = EventLoop((BARRIER, *phase("b")), may_skip=False)
    assert together(kernel(EventLoop((*before, inner)))) == {"ab"}
    assert together(kernel(EventLoop((*before, inner, BARRIER)))) == {"ab"}
    assert together(kernel(EventLoop((begin("a", "b"), *before, inner, BARRIER)))) == set()


def test_a_loop_may_not_run_at_all():
    after = (begin("b"), *phase("b"))
    assert together(kernel(write("a"), EventLoop((BARRIER,)), *after)) == {"ab"}
    assert together(kernel(write("a"), EventLoop((BARRIER,), may_skip=False), *after)) == set()


def test_each_arm_of_a_branch_may_be_taken():
    arms = (*phase("a"),), (*phase("b"),)
    assert together(kernel(EventBranch(arms), BARRIER, *phase("c"))) == {"ab"}
    assert together(kernel(EventBranch(((BARRIER,), ())), write("b"))) == set()
    assert together(kernel(write("a"), EventBranch(((BARRIER,), ())), write("b"))) == {"ab"}


def test_a_copy_is_on_its_way_until_it_is_waited_for_and_a_barrier_stands_behind():
    def pairs(*behind: Step) -> set[str]:
        return together(kernel(copy("a"), COMMIT, *behind, BARRIER, begin("b"), *phase("b")))

    assert pairs() == {"ab"}
    assert pairs(wait(0)) == set()
    assert pairs(BARRIER, wait(0)) == set()
    assert pairs(wait(1)) == {"ab"}
    assert pairs(copy("c"), COMMIT, wait(1)) == {"ac", "bc"}
    assert pairs(EventBranch(((wait(0),), ()))) == {"ab"}
    assert together(kernel(copy("a"), wait(0), BARRIER, write("b"))) == {"ab"}
    assert together(kernel(copy("a"), wait(-1), BARRIER, write("b"))) == set()
    assert together(kernel(copy("a"), COMMIT, BARRIER, write("b"), wait(0))) == {"ab"}
    assert pairs(wait(0), BARRIER, write("b"), BARRIER, read("a")) == {"ab"}


def test_what_is_kept_shares_with_nothing():
    steps = (*phase("a"), BARRIER, *phase("b"), BARRIER, *phase("c"))
    assert together(kernel(*steps, kept=("b",))) == {"ab", "bc"}


def test_a_barrier_is_added_where_it_saves_most_and_loops_least():
    def place(number: int, loops: int) -> Event:
        return Event(Effect.PLACE, number=number, loops=loops)

    body = (place(0, 1), begin("a"), *phase("a"), place(1, 1))
    steps = (EventLoop(body), place(2, 0), begin("b"), *phase("b"))
    assert barriers_to_add(kernel(*steps), MEMORY, 128, solve, more=False) == ()
    assert barriers_to_add(kernel(*steps), MEMORY, 64, solve, more=False) == (2,)
    assert barriers_to_add(kernel(*steps), MEMORY, 128, solve, more=True) == (2,)
    with_barrier = shared_memory_problem(kernel(*steps), MEMORY, (2,))
    assert solve(with_barrier).peak == 64
    assert [buffer.live for buffer in with_barrier.buffers] == [((0, 2),), ((2, 4),)]


def test_barriers_that_help_only_together_are_added():
    places = [Event(Effect.PLACE, number=number) for number in range(4)]
    steps = (
        places[0], write("a"), BARRIER, read("a"), places[1], write("b"), places[2], read("b"),
        places[3], write("c"), read("c"),
    )  # fmt: skip
    assert solve(shared_memory_problem(kernel(*steps), MEMORY)).peak == 192
    alone = [solve(shared_memory_problem(kernel(*steps), MEMORY, (at,))).peak for at in range(4)]
    assert min(alone) == 128
    assert barriers_to_add(kernel(*steps), MEMORY, 64, solve, more=False) == (1, 3)
    pair = (write("a"), BARRIER, read("a"), places[0], write("b"), write("c"), places[1], read("a"))
    assert barriers_to_add(kernel(*pair), MEMORY, 64, solve, more=False) == ()


def owned(*steps: Step, keeps: bool = True) -> tuple[tuple[str, str], ...]:
    """Return the pairs in place if threads keep to elements of their own."""
    numbered = tuple(
        replace(step, number=number) if isinstance(step, Event) else step
        for number, step in enumerate(steps)
    )
    asked = replace(kernel(*numbered), keeps_to_own=lambda *_: keeps)
    return shared_memory_problem(asked, MEMORY).in_place


def test_a_result_is_in_place_of_an_operand_that_is_used_no_more():
    steps = (write("a"), BARRIER, read("a"), write("b"), BARRIER, read("b"))
    assert owned(*steps) == (("a", "b"),)
    assert owned(*steps, keeps=False) == ()
    assert owned(*steps, read("a")) == ()  # It holds a value when the epoch ends
    assert owned(write("b"), *steps) == ()  # And the other one when it begins
    assert owned(*steps[:3], copy("b"), wait(-1), *steps[4:]) == ()


def test_results_may_go_to_and_fro():
    there = (write("a"), BARRIER, read("a"), write("b"), BARRIER)
    assert owned(*there, read("b"), begin("a"), write("a"), BARRIER, read("a")) == (("a", "b"),)


def test_a_result_of_the_next_round_is_not_in_place():
    def body(*last: Step) -> EventLoop:
        steps = (read("a"), write("b"), BARRIER, read("b"), *last)
        events = (replace(s, number=n) for n, s in enumerate(steps) if isinstance(s, Event))
        return EventLoop((begin("a", "b"), Event(Effect.WRITE, ("a",), number=9), BARRIER, *events))

    assert owned(body(BARRIER)) == (("a", "b"),)
    assert owned(body()) == ()  # One thread may write `a` while another has still to read `b`.


def test_events_may_name_buffers_of_another_memory():
    steps = (write("a", "other"), copy("other"), wait(0), BARRIER, read("a", "other"))
    assert [buffer.live for buffer in shared_memory_problem(kernel(*steps), MEMORY).buffers] == [
        ((0, 2),)
    ]


# Random kernels, run by two threads in all ways


STEPS = st.recursive(
    st.lists(
        st.one_of(
            st.just(BARRIER),
            st.sampled_from(NAMES).map(read),
            st.sampled_from(NAMES).map(write),
            st.sampled_from(NAMES).map(begin),
        ),
        max_size=5,
    ),
    lambda within: st.lists(
        st.one_of(
            st.just(BARRIER),
            st.sampled_from(NAMES).map(read),
            st.sampled_from(NAMES).map(write),
            within.map(lambda body: EventLoop(tuple(body))),
            st.tuples(within, within).map(lambda arms: EventBranch(tuple(map(tuple, arms)))),
        ),
        max_size=5,
    ),
    max_leaves=4,
)


def some_alike(steps: Sequence[Step], chosen: Iterator[bool], here: bool) -> tuple[Step, ...]:
    """Return steps whose barriers stand only in the chosen ones, which all threads take alike."""
    made: list[Step] = []
    for step in steps:
        if isinstance(step, Event):
            made += [step] if here or step.what is not Effect.BARRIER else []
            continue
        inside = here and next(chosen)
        if isinstance(step, EventLoop):
            made.append(EventLoop(some_alike(step.body, chosen, inside), step.may_skip))
        else:
            made.append(EventBranch(tuple(some_alike(arm, chosen, inside) for arm in step.arms)))
    return tuple(made)


def has_barrier(step: Step) -> bool:
    is_barrier = isinstance(step, Event) and step.what is Effect.BARRIER
    return is_barrier or any(has_barrier(one) for part in inner(step) for one in part)


Run = tuple[list[Event], list[Event]]


def runs(steps: Sequence[Step]) -> Iterator[Run]:
    """Yield what two threads do, who choose for themselves where they come by no barrier."""
    if not steps:
        yield [], []
        return
    first, rest = steps[0], steps[1:]
    heads: Any
    if isinstance(first, Event):
        heads = [([first], [first])]
    elif not has_barrier(first):
        heads = itertools.product(list(itertools.islice(ways([first]), 8)), repeat=2)
    elif isinstance(first, EventBranch):
        heads = itertools.chain.from_iterable(map(runs, first.arms))
    else:
        once = list(itertools.islice(runs(first.body), 8))
        twice = ((a + c, b + d) for (a, b), (c, d) in itertools.product(once, repeat=2))
        heads = [([], []), *once, *twice]
    tails = list(itertools.islice(runs(rest), 8))
    for one, other in itertools.islice(heads, 40):
        for tail, other_tail in tails:
            yield one + tail, other + other_tail


def ways(steps: Sequence[Step]) -> Iterator[list[Event]]:
    """Yield what a thread does, for each choice of arms and of none to two rounds."""
    if not steps:
        yield []
        return
    first, rest = steps[0], steps[1:]
    if isinstance(first, Event):
        heads: Any = [[first]]
    elif isinstance(first, EventBranch):
        heads = [way for arm in first.arms for way in ways(arm)]
    else:
        once = list(ways(first.body))
        heads = [[], *once, *(one + two for one in once for two in once)]
    tails = list(ways(rest))
    for head in heads:
        for tail in tails:
            yield head + tail


def needs(run: Run) -> list[set[str]]:
    """Return for each epoch of a run what is touched or holds a value that is read later."""
    threads = [split(way) for way in run]
    epochs = itertools.zip_longest(*threads, fillvalue=[])
    touched = [
        {name for event in one + other if event.what is not Effect.BEGIN for name in event.buffers}
        for one, other in epochs
    ]
    for name in NAMES:
        for begin, end in (*own_values(run, name), *values_of_others(threads, name)):
            for number in range(begin, end + 1):
                touched[number].add(name)
    return touched


def own_values(run: Run, name: str) -> Iterator[tuple[int, int]]:
    """Yield the epochs of a write and of the last read behind it, by one thread."""
    for way in run:
        kinds = [
            (number, event.what)
            for number, events in enumerate(split(way))
            for event in events
            if name in event.buffers
        ]
        for at, (begin, what) in enumerate(kinds):
            later = itertools.takewhile(lambda one: one[1] is not Effect.BEGIN, kinds[at + 1 :])
            ends = [number for number, kind in later if kind is Effect.READ]
            if what is Effect.WRITE and ends:
                yield begin, ends[-1]


def values_of_others(threads: Sequence[list[list[Event]]], name: str) -> Iterator[tuple[int, int]]:
    """Yield the epochs of a write and of another thread's read, where the buffer stays as it is."""

    def epochs_of(thread: list[list[Event]], what: Effect) -> list[int]:
        return [n for n, events in enumerate(thread) if Event(what, (name,)) in events]

    begun = {n for thread in threads for n in epochs_of(thread, Effect.BEGIN)}
    for writer, reader in itertools.permutations(threads, 2):
        pairs = itertools.product(epochs_of(writer, Effect.WRITE), epochs_of(reader, Effect.READ))
        for begin, end in pairs:
            if begin <= end and begun.isdisjoint(range(begin, end + 1)):
                yield begin, end


def split(way: Sequence[Event]) -> list[list[Event]]:
    """Return what a thread does in each epoch."""
    found: list[list[Event]] = [[]]
    for event in way:
        if event.what is Effect.BARRIER:
            found.append([])
        else:
            found[-1].append(event)
    return found


@swept(40, 2000, STEPS, st.lists(st.booleans(), min_size=1, max_size=6))
def test_what_any_run_needs_is_kept_apart(steps: list[Step], chosen: list[bool]):
    mixed = some_alike(steps, itertools.cycle(chosen), True)
    given_kernel = kernel(*mixed)
    apart = together(given_kernel)
    for run in itertools.islice(runs(mixed), 60):
        for needed in needs(run):
            for one, two in itertools.combinations(sorted(needed), 2):
                assert one + two in apart, (one, two, run)
    problem = shared_memory_problem(given_kernel, MEMORY)
    assert verify(problem, solve(problem)) == ()
