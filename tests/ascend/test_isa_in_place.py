# SPDX-License-Identifier: Apache-2.0
"""Which results may take an operand's place by the rules of the instruction set."""

from __future__ import annotations

import pytest
import tvm
from ascend_modules import module
from program_text import program
from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.stmt import AttrStmt

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.planning import Penalty, Problem
from target_hw.ascend import CHIPS

MEMORY = CHIPS["ascend/910b"]


def problem_of(func: tirx.PrimFunc, restrict: bool = False) -> Problem:
    func = module(func, "llvm")["main"]
    (problem,) = read_kernel(func, MEMORY, restrict_inplace_as_isa=restrict).problems
    return problem


def chain(value, dtype: str = "float32") -> tirx.PrimFunc:
    """Return a function with ``b[i] = value(a, c, i, j)``, where `a` and `c` are not read again."""
    x, y = (tirx.decl_buffer([64], dtype, name, layout=None) for name in "xy")
    a, b, c = (tirx.decl_buffer([64], dtype, name, scope="local.UB", layout=None) for name in "abc")

    def nest(make):
        i, j = (tirx.Var(name, "int32") for name in "ij")
        inner = tirx.For(j, tirx.const(0), tirx.const(8), tirx.ForKind.SERIAL, make(i, j))
        return tirx.For(i, tirx.const(0), tirx.const(8), tirx.ForKind.SERIAL, inner)

    def copy(to, source):
        return nest(lambda i, j: tirx.BufferStore(to, source[i * 8 + j], [i * 8 + j]))

    body = tirx.SeqStmt(
        [
            tirx.AllocBuffer(a),
            tirx.AllocBuffer(c),
            copy(a, x),
            copy(c, x),
            tirx.AllocBuffer(b),
            nest(lambda i, j: tirx.BufferStore(b, value(a, c, i, j), [i * 8 + j])),
            copy(y, b),
        ]
    )
    return tirx.PrimFunc([x, y], body).with_attr("global_symbol", "main")


ALWAYS = {
    "add": lambda a, c, i, j: a[i * 8 + j] + c[i * 8 + j],
    "subtract": lambda a, c, i, j: c[i * 8 + j] - a[i * 8 + j],
    "multiply with itself": lambda a, c, i, j: a[i * 8 + j] * a[i * 8 + j],
    "maximum with a scalar": lambda a, c, i, j: tirx.max(a[i * 8 + j], tirx.const(0, "float32")),
    "multiply and add": lambda a, c, i, j: a[i * 8 + j] * tirx.const(2, "float32") + c[i * 8 + j],
}
UNLESS_RESTRICTED = {
    "divide": lambda a, c, i, j: a[i * 8 + j] / c[i * 8 + j],
    "exponential": lambda a, c, i, j: tirx.exp(a[i * 8 + j]),
    "broadcast": lambda a, c, i, j: a[i * 8 + j] * c[i],
    "select": lambda a, c, i, j: tirx.if_then_else(i < 4, a[i * 8 + j], c[i * 8 + j]),
    "a choice": lambda a, c, i, j: tirx.Select(i < 4, a[i * 8 + j], c[i * 8 + j]),
    "a chain": lambda a, c, i, j: tirx.exp(a[i * 8 + j] - c[i]),
}
NEVER = {
    "copy": lambda a, c, i, j: a[i * 8 + j],
    "transpose of the other": lambda a, c, i, j: a[i * 8 + j] + c[j * 8 + i],
    "read again later in the chain": lambda a, c, i, j: (
        (a[i * 8 + j] + tirx.const(1, "float32")) * a[i * 8 + j]
    ),
    "two intermediate values": lambda a, c, i, j: (
        (a[i * 8 + j] + tirx.const(1, "float32")) * tirx.exp(c[i * 8 + j])
    ),
    "code of others": lambda a, c, i, j: tirx.call_pure_extern("float32", "f", a[i * 8 + j]),
    "read late in the chain": lambda a, c, i, j: tirx.exp(c[i]) + a[i * 8 + j],
    "narrowed for a while": lambda a, c, i, j: tirx.Cast(
        "float32", tirx.Cast("float16", a[i * 8 + j])
    ),
    "widened for a while": lambda a, c, i, j: tirx.Cast(
        "float32", tirx.exp(tirx.Cast("float64", a[i * 8 + j]))
    ),
}


def pairs(value, restrict: bool) -> set[tuple[str, str]]:
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
    both = chain(lambda a, c, i, j: a[i * 8 + j] + c[i * 8 + j])
    assert problem_of(both).in_place == (("a", "b"),)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_vectors_do_element_by_element_may_be_in_place(dtype: str):
    def wide(a, c, i, j):
        return tirx.max(a[i * 8 + j] + tirx.const(1, dtype), c[i * 8 + j])

    assert problem_of(chain(wide, dtype)).in_place == (("a", "b"),)


def test_bits_are_turned_in_place():
    assert problem_of(chain(lambda a, c, i, j: ~a[i * 8 + j], "int32")).in_place == (("a", "b"),)


def test_the_scalar_unit_writes_over_nothing():
    func = chain(lambda a, c, i, j: a[i * 8 + j] + c[i * 8 + j])
    parts = list(func.body.seq)
    at = [isinstance(part, tirx.AllocBuffer) for part in parts].index(True, 2) + 1
    parts[at] = AttrStmt(tirx.const(0), "pipe", StringImm("S"), parts[at])
    assert problem_of(func.with_body(tirx.SeqStmt(parts))).in_place == ()


buffers = program("""
def buffers(x: 512, y: 512):
    for tile in range(8):
        loaded: local.UB 64 float32 {"multi_buffer": 2}
        between: local.UB 64
        stored: local.UB 64 float32 {"multi_buffer": 2}
        loaded[i] = x[tile * 64 + i] for i in range(64)
        between[i] = loaded[i] * T.float32(2) for i in range(64)
        stored[i] = between[i] + T.float32(1) for i in range(64)
        y[tile * 64 + i] = stored[i] for i in range(64)
""")


def test_slots_may_be_made_equal():
    # Whoever has fewer slots can have as many: the last pair would make one chain of all three,
    # loaded at one end and stored at the other, both double buffers, so it costs a stall.
    found = problem_of(buffers)
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


unique = program("""
def unique(x: 64, y: 64):
    a: local.UB 64 float32 {"mem_unique": True}
    b, c: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = a[i] * T.float32(2) for i in range(64)
    c[i] = b[i] * T.float32(2) for i in range(64)
    y[i] = c[i] for i in range(64)
""")


def test_what_is_unique_is_in_no_pair_and_separated_from_all_others():
    problem = problem_of(unique)
    assert problem.in_place == (("b", "c"),)
    assert set(map(frozenset, problem.separations)) == {
        frozenset(("a", other.name)) for other in problem.buffers if other.name != "a"
    }


growing = program("""
def growing(x: 64, y: 64):
    a: local.UB 32
    b: local.UB 64
    a[i] = x[i] for i in range(32)
    b[i] = a[i] * T.float32(2) for i in range(32)
    b[i + 32] = T.float32(2) for i in range(32)
    y[i] = b[i] for i in range(64)
""")


def test_a_result_is_no_larger_than_what_it_takes_the_place_of():
    assert problem_of(growing).in_place == ()


narrowed = program("""
def narrowed(x: 512, y: 512 float16):
    for tile in range(8):
        wide: local.UB 64
        narrow: local.UB 64 float16 {"multi_buffer": 2}
        wide[i] = x[tile * 64 + i] for i in range(64)
        narrow[i] = T.Cast("float16", wide[i]) for i in range(64)
        y[tile * 64 + i] = narrow[i] for i in range(64)
""")


def test_a_narrower_result_with_more_slots_stays_apart():
    assert problem_of(narrowed).in_place == ()
    text = narrowed.script().replace(', annotations={"multi_buffer": 2}', "")
    assert "annotations" not in text
    assert problem_of(tvm.script.from_source(text)).in_place == (("wide", "narrow"),)


tiles = program("""
def tiles(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    for t in range(8):
        b[T.Ramp(t * 8, 1, 8)] = a[T.Ramp(t * 8, 1, 8)] * T.Broadcast(T.float32(2), 8)
        b[T.Ramp(t * 8, 1, 8)] = b[T.Ramp(t * 8, 1, 8)] + T.Broadcast(T.float32(1), 8)
    b[i] = b[i] * b[i] for i in range(64)
    y[i] = b[i] for i in range(64)
""")


def test_what_is_written_again_later_is_in_place_all_the_same():
    assert problem_of(tiles).in_place == (("a", "b"),)
