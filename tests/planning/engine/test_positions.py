# SPDX-License-Identifier: Apache-2.0
"""Renumbered positions: the same buffers are live together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from passes.planning import Buffer, Problem, compressed

RANGES = st.tuples(st.integers(-50, 50), st.integers(1, 20)).map(lambda r: (r[0], r[0] + r[1]))


def live_together(problem: Problem) -> set[tuple[str, str]]:
    return {
        (one.name, two.name)
        for one in problem.buffers
        for two in problem.buffers
        if any(max(a, c) < min(b, d) for a, b in one.live for c, d in two.live)
    }


@given(st.lists(RANGES, min_size=1, max_size=8))
@settings(print_blob=True)
def test_the_same_buffers_are_live_together(ranges: list[tuple[int, int]]):
    problem = Problem(tuple(Buffer(f"b{i}", 1, (live,)) for i, live in enumerate(ranges)))
    small = compressed(problem)
    assert live_together(small) == live_together(problem)
    ends = sorted({at for b in small.buffers for live in b.live for at in live})
    assert ends == list(range(len(ends)))
    assert compressed(small) == small


def test_what_touches_in_one_statement_touches_at_one_position():
    problem = Problem((Buffer("a", 1, ((1, 7),)), Buffer("b", 1, ((5, 11), (20, 30)))))
    assert [b.live for b in compressed(problem).buffers] == [((0, 2),), ((1, 3), (4, 5))]
