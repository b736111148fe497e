# SPDX-License-Identifier: Apache-2.0
"""Indices that TVM gets wrong where the number of a part is of unknown sign."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llvm_level import at_level
from operator_modules import arrays, check_against_stock, module
from tvm import relax, tirx
from tvm.ir import GlobalVar, PrimType, Var
from tvm.tirx import (
    Bind,
    BufferLoad,
    BufferStore,
    Cast,
    For,
    ForKind,
    IntImm,
    SeqStmt,
    floordiv,
    floormod,
)

from passes.layer_group.rewrite.loop_functions import called
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip

INDEX = "int64"
COLUMNS, ELEMENTS = 80, 400


def one_lane(capacity):
    """Register a chip of one lane; return the name of its twin."""
    name = f"test/one-lane-{capacity}"
    facts = (("eu_bytes", 16), ("lanes", 1))
    local = MemoryScope("local.LMEM", capacity, alignment=16, facts=facts)
    pipes = (Pipe("GDMA", "bytes", 1, 1), Pipe("TIU", "multiply-adds", 64, 1))
    memory = MemoryHierarchy((local, MemoryScope("global", alignment=64)))
    register_chip(name, memory, machine=Machine(pipes), override=True)
    return f"{name}-llvm"


@pytest.mark.parametrize(("capacity", "shape"), [(4096, (6, 64, 40)), (8192, (12, 64, 60))])
def test_rows_that_are_flipped_part_by_part(capacity, shape):
    tokens, inner, outer = shape

    def body(emit, x, w):
        y = emit(relax.op.reshape(emit(relax.op.matmul(x, w)), (tokens, outer)))
        return emit(relax.op.flip(y, axis=0))

    mod = module([(1, tokens, inner), (inner, outer)], body)
    assert check_against_stock(mod, one_lane(capacity), arrays(mod)) == 1


def divided(draw, one, operators="*/%"):
    """Draw a product, a quotient or a remainder of an index by a constant."""
    (index, text), operator, by = one, draw(st.sampled_from(operators)), draw(st.integers(2, 7))
    divide = {"*": lambda a, b: a * b, "/": floordiv, "%": floormod}[operator]
    return divide(index, IntImm(INDEX, by)), f"({text}{operator.replace('/', '//')}{by})"


@st.composite
def indices(draw):
    """Draw an index of a part's number, a loop's variable and constants: TVM's, and Python's.

    A sum or difference of them is divided.
    """
    part, loop = (Var(name, PrimType(INDEX)) for name in ("part", "loop"))
    terms = [(part, "part"), (loop, "loop"), *draw(st.sampled_from(([], [(loop, "loop")])))]
    terms = [divided(draw, term) if draw(st.booleans()) else term for term in terms]
    constant = draw(st.integers(0, 60))
    index, text = IntImm(INDEX, constant), str(constant)
    for term, more in draw(st.permutations(terms)):
        plus = draw(st.booleans())
        index, text = index + term if plus else index - term, f"({text}{'-+'[plus]}{more})"
    whole = divided(draw, (index, text), "/%")
    if draw(st.booleans()):
        whole = divided(draw, (whole[0] - loop, f"({whole[1]}-loop)"), "/%")
    return part, loop, *whole


def check_index(drawn, count):
    """Read an array at an index, in a function that is given the part's number.

    Compare with the index as Python computes it.
    """
    part, loop, index, text = drawn
    given = Var("given", PrimType("int32"))
    source = tirx.decl_buffer([ELEMENTS], "int32", "source", layout=None)
    made = tirx.decl_buffer([count, COLUMNS], "int32", "made", layout=None)
    body = BufferStore(made, BufferLoad(source, [index]), [loop, part])
    zero, one, many = (IntImm(INDEX, n) for n in (0, 1, count))
    begin = Var("begin", PrimType(INDEX))
    body = For(part, begin, one, ForKind.SERIAL, body)
    functions = {}
    body = called(For(loop, zero, many, ForKind.SERIAL, body), "loops", functions)
    body = SeqStmt([Bind(begin, Cast(INDEX, given)), body])
    function = tirx.PrimFunc([given, source, made], body).with_attr("s_tir", True)
    main = function.with_attr("global_symbol", "main")
    mod = tvm.IRModule({**functions, GlobalVar("main"): main})
    parts = {}
    for at in (0, 1, 5, 7, 13, 40, 70):
        wanted = [eval(text, {}, {"part": at, "loop": i}) for i in range(count)]
        if min(wanted) >= 0 and max(wanted) < ELEMENTS:
            parts[at] = wanted
    assume(parts)
    built = tirx.build(mod, target=at_level("llvm"))
    array = tvm.runtime.tensor(np.arange(ELEMENTS, dtype="int32"))
    for at, wanted in parts.items():
        result = tvm.runtime.tensor(np.zeros((count, COLUMNS), "int32"))
        built["main"](at, array, result)
        np.testing.assert_array_equal(result.numpy()[:, at], wanted)


@given(indices(), st.sampled_from((1, 2, 6)))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_an_index_is_what_it_says(drawn, count):
    check_index(drawn, count)


@pytest.mark.slow
@given(indices(), st.sampled_from((1, 2, 6)))
@settings(max_examples=300, deadline=None, print_blob=True)
def test_many_indices_are_what_they_say(drawn, count):
    check_index(drawn, count)
