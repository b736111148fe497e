# SPDX-License-Identifier: Apache-2.0
"""The twin that a CPU runs: indices that TVM gets wrong, alignments, and products it rounds."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import assume
from hypothesis import strategies as st
from llvm_level import at_level
from operator_modules import arrays, call, check_against_stock, module
from sweeps import swept
from tvm import relax, tirx
from tvm.ir import GlobalVar, PrimType, Var
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features, llvm_get_system_cpu
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
from tvm_ext.relax_passes import relax_pipeline
from tvm_ext.report.readers.groups import layer_groups

INDEX = "int64"
COLUMNS, ELEMENTS = 80, 400


def twin(capacity, lanes=1, alignment=16, startup=1):
    """Register a chip; return the name of its twin."""
    name = f"test/twin-{capacity}-{lanes}-{alignment}-{startup}"
    facts = (("eu_bytes", max(4, alignment)), ("lanes", lanes))
    local = MemoryScope("local.LMEM", capacity, alignment=alignment, facts=facts)
    pipes = (Pipe("GDMA", "bytes", 1, startup), Pipe("TIU", "multiply-adds", 64, 1))
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
    assert check_against_stock(mod, twin(capacity), arrays(mod)) == 1


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


test_an_index_is_what_it_says = swept(25, 300, indices(), st.sampled_from((1, 2, 6)))(check_index)


def wide_beside_narrow(height):
    """Numbers of 32 bits that become numbers of 64 bits, beside others of 32 bits."""

    def pool(emit, x):
        return emit(relax.op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)))

    def body(emit, x, y):
        narrow = pool(emit, pool(emit, x))
        wide = emit(relax.op.astype(pool(emit, narrow), "int64"))
        total = emit(relax.op.add(pool(emit, wide), emit(relax.op.astype(y, "int64"))))
        return [pool(emit, total), narrow]

    return module([(1, 3, height, height)] * 2, body, inputs=2, dtype="int32")


@pytest.mark.parametrize(("lanes", "alignment", "capacity"), [(1, 4, 1000), (5, 1, 400)])
def test_elements_that_are_wider_than_a_chip_aligns(lanes, alignment, capacity):
    target = twin(capacity, lanes, alignment, startup=10)
    mod = wide_beside_narrow(5)
    report = layer_groups(mod, Target(target))
    assert not [layer for layer in report.left if "written" in layer.reason]
    assert check_against_stock(mod, target, arrays(mod)) > 0


HERE = Target({"kind": "llvm", "mcpu": llvm_get_system_cpu()})


@pytest.mark.skipif(not llvm_cpu_has_features("fma", HERE), reason="the CPU has none")
def test_a_product_is_rounded_before_it_is_added():
    def body(emit, x, s, b, w):
        y = emit(relax.op.reshape(emit(relax.op.multiply(x, s)), (1, 64, 4, 8)))
        return emit(relax.op.matmul(emit(relax.op.add(y, b)), w))

    mod = module([(1, 64, 32), (1, 64, 32), (1, 64, 4, 8), (8, 8)], body, inputs=3)
    described = dict(Target("sophgo/cv181x-llvm").export())
    described.pop("tag", None)
    target = Target({**described, "mcpu": "haswell"})
    assert layer_groups(mod, target).groups
    args = arrays(mod)
    plain, grouped = (
        tvm.compile(mod, target, relax_pipeline=relax_pipeline(target, layer_group=groups))
        for groups in (False, True)
    )
    theirs, ours = (call(relax.VirtualMachine(b, tvm.cpu()), args) for b in (plain, grouped))
    np.testing.assert_array_equal(ours[0], theirs[0])
