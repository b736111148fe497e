# SPDX-License-Identifier: Apache-2.0
"""Which results may take an operand's place by the rules of the instruction set."""

from __future__ import annotations

import pytest
import tvm
from ascend_modules import module
from program_text import program, programs
from tvm import tirx

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.planning import Penalty, Problem
from target_hw.ascend import CHIPS

MEMORY = CHIPS["ascend/910b"]


def problem_of(func: tirx.PrimFunc, restrict: bool = False) -> Problem:
    func = module(func, "llvm")["main"]
    (problem,) = read_kernel(func, MEMORY, restrict_inplace_as_isa=restrict).problems
    return problem


def chain(value: str, dtype: str = "float32", pipe: str = "") -> tirx.PrimFunc:
    """Return a function with ``b[@] = value``, where `a` and `c` are not read again.

    `@` is the index of an element, of `i` and `j`.
    """
    result = f"b[@] = {value} for i, j in T.grid(8, 8)"
    named = f'with T.attr({{"pipe": "{pipe}"}}):\n            {result}' if pipe else result
    text = f"""
    def chain(x: 64 {dtype}, y: 64 {dtype}):
        a, c: local.UB 64 {dtype}
        a[@] = x[@] for i, j in T.grid(8, 8)
        c[@] = x[@] for i, j in T.grid(8, 8)
        b: local.UB 64 {dtype}
        {named}
        y[@] = b[@] for i, j in T.grid(8, 8)
    """
    return program(text.replace("@", "i * 8 + j"))


ALWAYS = {
    "add": "a[@] + c[@]",
    "subtract": "c[@] - a[@]",
    "multiply with itself": "a[@] * a[@]",
    "maximum with a scalar": "T.max(a[@], T.float32(0))",
    "multiply and add": "a[@] * T.float32(2) + c[@]",
}
UNLESS_RESTRICTED = {
    "divide": "a[@] / c[@]",
    "exponential": "T.exp(a[@])",
    "broadcast": "a[@] * c[i]",
    "select": "T.if_then_else(i < 4, a[@], c[@])",
    "a choice": "T.Select(i < 4, a[@], c[@])",
    "a chain": "T.exp(a[@] - c[i])",
}
NEVER = {
    "copy": "a[@]",
    "transpose of the other": "a[@] + c[j * 8 + i]",
    "read again later in the chain": "(a[@] + T.float32(1)) * a[@]",
    "two intermediate values": "(a[@] + T.float32(1)) * T.exp(c[@])",
    "code of others": 'T.call_pure_extern("float32", "f", a[@])',
    "read late in the chain": "T.exp(c[i]) + a[@]",
    "narrowed for a while": 'T.Cast("float32", T.Cast("float16", a[@]))',
    "widened for a while": 'T.Cast("float32", T.exp(T.Cast("float64", a[@])))',
}


def pairs(value: str, restrict: bool) -> set[tuple[str, str]]:
    return set(problem_of(chain(value), restrict).in_place) - {("c", "b")}


@pytest.mark.parametrize("name", ALWAYS)
def test_what_every_chip_can_do(name: str):
    assert pairs(ALWAYS[name], False) == pairs(ALWAYS[name], True) == {("a", "b")}


@pytest.mark.parametrize("name", UNLESS_RESTRICTED)
def test_what_not_every_chip_can_do(name: str):
    assert pairs(UNLESS_RESTRICTED[name], False) == {("a", "b")}
    assert pairs(UNLESS_RESTRICTED[name], True) == set()


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_in_place(name: str):
    assert pairs(NEVER[name], False) == set()


def test_a_result_has_one_partner():
    assert problem_of(chain("a[@] + c[@]")).in_place == (("a", "b"),)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_vectors_do_element_by_element_may_be_in_place(dtype: str):
    wide = f"T.max(a[@] + T.{dtype}(1), c[@])"
    assert problem_of(chain(wide, dtype)).in_place == (("a", "b"),)


def test_bits_are_turned_in_place_and_the_scalar_unit_writes_over_nothing():
    assert problem_of(chain("~a[@]", "int32")).in_place == (("a", "b"),)
    assert problem_of(chain("a[@] + c[@]", pipe="S")).in_place == ()


KERNELS = programs("""
def buffers(x: 512, y: 512):
    for tile in range(8):
        loaded: local.UB 64 float32 {"multi_buffer": 2}
        between: local.UB 64
        stored: local.UB 64 float32 {"multi_buffer": 2}
        loaded[i] = x[tile * 64 + i] for i in range(64)
        between[i] = loaded[i] * T.float32(2) for i in range(64)
        stored[i] = between[i] + T.float32(1) for i in range(64)
        y[tile * 64 + i] = stored[i] for i in range(64)

def unique(x: 64, y: 64):
    a: local.UB 64 float32 {"mem_unique": True}
    b, c: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = a[i] * T.float32(2) for i in range(64)
    c[i] = b[i] * T.float32(2) for i in range(64)
    y[i] = c[i] for i in range(64)

def growing(x: 64, y: 64):
    a: local.UB 32
    b: local.UB 64
    a[i] = x[i] for i in range(32)
    b[i] = a[i] * T.float32(2) for i in range(32)
    b[i + 32] = T.float32(2) for i in range(32)
    y[i] = b[i] for i in range(64)

def narrowed(x: 512, y: 512 float16):
    for tile in range(8):
        wide: local.UB 64
        narrow: local.UB 64 float16 {"multi_buffer": 2}
        wide[i] = x[tile * 64 + i] for i in range(64)
        narrow[i] = T.Cast("float16", wide[i]) for i in range(64)
        y[tile * 64 + i] = narrow[i] for i in range(64)

def tiles(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    for t in range(8):
        b[T.Ramp(t * 8, 1, 8)] = a[T.Ramp(t * 8, 1, 8)] * T.Broadcast(T.float32(2), 8)
        b[T.Ramp(t * 8, 1, 8)] = b[T.Ramp(t * 8, 1, 8)] + T.Broadcast(T.float32(1), 8)
    b[i] = b[i] * b[i] for i in range(64)
    y[i] = b[i] for i in range(64)
""")


def test_slots_may_be_made_equal():
    # Whoever has fewer slots can have as many: the last pair would make one chain of all three,
    # loaded at one end and stored at the other, both double buffers, so it costs a stall.
    found = problem_of(KERNELS["buffers"])
    assert found.in_place == (("loaded", "between"), ("between", "stored"))
    assert found.penalties[0] == Penalty("between", "stored", 24)


STALL = """
def stall(x: 512, y: 512):
    for tile in range(8):
        loaded: local.UB 64 float32 {"multi_buffer": 2}
        other: local.UB 64
        stored: local.UB 64 float32 {"multi_buffer": 2}
        loaded[i] = x[tile * 64 + i] for i in range(64)
        other[i] = T.float32(1) for i in range(64)
        stored[i] = loaded[i] + other[i] for i in range(64)
        y[tile * 64 + i] = stored[i] for i in range(64)
"""


def test_a_pair_that_stalls_has_a_price_and_another_partner_is_sought():
    found = problem_of(program(STALL))
    assert found.in_place == (("loaded", "stored"), ("other", "stored"))
    assert found.penalties[0] == Penalty("loaded", "stored", 24)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ('loaded: local.UB 64 float32 {"multi_buffer": 2}', "loaded: local.UB 64"),
        ('stored: local.UB 64 float32 {"multi_buffer": 2}', "stored: local.UB 64"),
        ("loaded[i] = x[tile * 64 + i]", "loaded[i] = T.float32(2)"),
        ("y[tile * 64 + i] = stored[i]", "other[i] = stored[i] + T.float32(1)"),
    ],
)
def test_double_buffers_stall_where_one_is_loaded_and_the_other_stored(line: str, changed: str):
    assert line in STALL
    found = problem_of(program(STALL.replace(line, changed)))
    assert found.in_place[0] == ("loaded", "stored")
    assert Penalty("loaded", "stored", 24) not in found.penalties


def test_what_is_unique_is_in_no_pair_and_separated_from_all_others():
    problem = problem_of(KERNELS["unique"])
    assert problem.in_place == (("b", "c"),)
    assert set(map(frozenset, problem.separations)) == {
        frozenset(("a", other.name)) for other in problem.buffers if other.name != "a"
    }


def test_a_result_is_no_larger_than_what_it_takes_the_place_of():
    assert problem_of(KERNELS["growing"]).in_place == ()


def test_a_narrower_result_with_more_slots_stays_apart():
    assert problem_of(KERNELS["narrowed"]).in_place == ()
    text = KERNELS["narrowed"].script().replace(', annotations={"multi_buffer": 2}', "")
    assert "annotations" not in text
    assert problem_of(tvm.script.from_source(text)).in_place == (("wide", "narrow"),)


def test_what_is_written_again_later_is_in_place_all_the_same():
    assert problem_of(KERNELS["tiles"]).in_place == (("a", "b"),)
