# SPDX-License-Identifier: Apache-2.0
"""Loops as Python and as TIR: the same results, and one line for what is not understood."""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from typing import NamedTuple

import numpy as np
import pytest

from passes.ir.loop_to_tir import LoopError, loop_module
from passes.planning.engine import compiled

Ints = MutableSequence[int]

LIMIT = 10
FAR = 1 << 40
FIRST, SECOND = range(2)


class State(NamedTuple):
    values: Ints
    found: Ints
    count: int


def arithmetic(state: State, one: int, two: int) -> None:
    """Floor division and remainder of negative numbers, `min`, `max`, and constants."""
    found = state.found
    found[0] = one // two
    found[1] = one % two
    found[2] = -one - 2 * (two - LIMIT)
    found[3] = min(one, two) + max(one, -two)
    found[4] = one > two
    found[5] = one if one <= two else two
    found[6] = int(one == two) + int(one != two) * 2


def conditions(state: State, one: int, two: int) -> None:
    """What is not evaluated would be read far outside of the array."""
    values, found = state.values, state.found
    found[0] = 1 if one > 100 and values[one * FAR] > 0 else 2
    found[1] = one < 100 or values[FAR] > 0 or values[2 * FAR] > 0
    found[2] = values[one * FAR] if one > 100 else values[two]
    found[3] = not (one < 100 and (two >= 0 or values[FAR] == 1))
    if one > 100 and two > 100 and values[FAR] > 0:
        found[4] = 1
    elif not one:
        found[4] = 2
    else:
        found[4] = 3
    # A simplifier that joins conditions of branches alike would read this one.
    found[5] = (values[one * FAR] if two > 100 else 7) if one > 100 else 7


def loops(state: State, one: int, two: int) -> None:
    """Loops that are left early, go on early, are empty, and whose bounds change meanwhile."""
    found = state.found
    at, last = 0, state.count
    while at < last:
        at, last = at + 1, last - 1
        if at == 2:
            continue
        if at == 5:
            break
        found[0] += at * last
    for index in range(state.count):
        found[1] += index
    for index in range(two, one):
        found[2] += index
    end = 3
    for index in range(end):
        end = 100
        found[3] += index
    found[4] = index
    while True:
        found[5] += 1
        if found[5] == 4:
            return


def helpers(state: State, one: int, two: int) -> None:
    """Helpers with and without results, that return early, and that call helpers."""
    place = _place_above(state, one)
    state.found[0] = place
    state.found[FIRST + 1] = _place_above(state, FAR)
    _add(state.found, 2, place)
    _add(state.found, 3, two)
    state.found[4] = _twice(two)
    place, two = two, place
    state.found[5] = place - 2 * two


def _place_above(state: State, low: int) -> int:
    """Return where the first value above a limit is."""
    values = state.values
    for at in range(state.count):
        if values[at] > low:
            return at
    return -1


def _add(found: Ints, at: int, what: int) -> None:
    if what < 0:
        return
    found[at] += what
    what = -1
    found[at] += what


def _twice(one: int) -> int:
    one = _one_more(one)
    return _one_more(one * 2)


def _one_more(one: int) -> int:
    return one + 1


@pytest.fixture(autouse=True, scope="module")
def nothing_is_kept():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.CACHE_VARIABLE, compiled.OFF)
        yield


@pytest.mark.parametrize("loop", [arithmetic, conditions, loops, helpers], ids=lambda f: f.__name__)
def test_both_forms_do_the_same(loop):
    rng = random.Random(1)
    for _ in range(40):
        values = [rng.randint(-50, 50) for _ in range(9)]
        state = State(values, [0] * 8, 9)
        plain, fast = compiled.start(loop, state, False), compiled.start(loop, state, True)
        one, two = rng.randint(-20, 20), rng.choice([-7, -3, 1, 4])
        two = two if loop is arithmetic else abs(two)
        plain.advance(one, two)
        fast.advance(one, two)
        assert plain.state.found == fast.state.found.tolist(), (values, one, two)
        assert plain.state.values == fast.state.values.tolist() == values


def test_arrays_without_elements_and_rooms_are_taken():
    state = Rooms([], compiled.Room(3))
    for running in (compiled.start(fill, state, False), compiled.start(fill, state, True)):
        running.advance(3)
        assert [running.state.room[at] for at in range(3)] == [0, 1, 2]


class Rooms(NamedTuple):
    none: Ints
    room: Ints


def fill(rooms: Rooms, count: int) -> None:
    for at in range(count):
        rooms.room[at] = at


def test_the_module_has_a_function_for_each():
    module = loop_module(helpers)
    names = sorted(str(name.name_hint) for name in module.get_global_vars())
    assert names == ["_add", "_one_more", "_place_above", "_twice", "helpers"]


def a_power(state: State) -> None:
    state.found[0] = state.values[0] ** 2


def a_chain(state: State) -> None:
    state.found[0] = 0 < state.values[0] < 2


def a_result_inside(state: State) -> None:
    state.found[0] = 1 + _one_more(2)


def a_result_in_a_condition(state: State) -> None:
    while _one_more(state.found[0]) < 3:
        state.found[0] += 1


def a_float(state: State) -> None:
    state.found[0] = 1.5


def an_unknown_name(state: State) -> None:
    state.found[0] = missing  # noqa: F821


def an_unknown_call(state: State) -> None:
    print(state.found[0])


def a_step(state: State) -> None:
    for at in range(0, 9, 2):
        state.found[0] += at


def an_array_as_a_number(state: State) -> None:
    state.found[0] = state.values


def an_array_renamed_to_a_number(state: State) -> None:
    found = state.found
    found = 1  # noqa: F841


def an_else_of_a_loop(state: State) -> None:
    for at in range(3):
        state.found[0] = at
    else:
        state.found[0] = 7


NOT_UNDERSTOOD = {
    a_power: "'state.values[0] ** 2'",
    a_chain: "'0 < state.values[0] < 2'",
    a_result_inside: "'_one_more(2)'",
    a_result_in_a_condition: "'_one_more(state.found[0])'",
    a_float: "'1.5'",
    an_unknown_name: "'missing'",
    an_unknown_call: "'print(state.found[0])'",
    a_step: "'range(0, 9, 2)'",
    an_array_as_a_number: "'state.values'",
    an_array_renamed_to_a_number: "'found'",
    an_else_of_a_loop: "else:",
}


@pytest.mark.parametrize("loop", NOT_UNDERSTOOD, ids=lambda f: f.__name__)
def test_what_is_not_understood_is_named(loop):
    with pytest.raises(LoopError) as error:
        loop_module(loop)
    line = loop.__code__.co_firstlineno
    assert loop.__name__ in str(error.value)
    assert NOT_UNDERSTOOD[loop] in str(error.value)
    assert any(f"line {line + later}:" in str(error.value) for later in range(1, 4))


def test_the_compiled_arrays_are_aligned():
    running = compiled.start(fill, Rooms([1, 2, 3], [0] * 5), True)
    for array in running.state:
        assert isinstance(array, np.ndarray)
        assert array.ctypes.data % compiled.ALIGNMENT == 0
