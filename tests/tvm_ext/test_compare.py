# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
import tvm
from chain import CHAIN, COPY, NOT_FLAT, ONLY_RELAX
from program_text import program
from tvm.ir import IRModule
from tvm.script import tirx as T
from tvm.target import Target

import tvm_ext
from tvm_ext import Allocations
from tvm_ext.comparison.storage_rewrite import allocations
from tvm_ext.lowering import split
from tvm_ext.transform import StorageRewrite

chain, copy, not_flat, OnlyRelax = map(tvm.script.from_source, (CHAIN, COPY, NOT_FLAT, ONLY_RELAX))

every_size = program("""
def every_size(n: T.int32, a: 3, b: 3):
    bits: global 3 int4
    words: global 5 float32x4
    flag: local 1 bool
    block: local.UB 7 float16
    some = T.alloc_buffer((n,), "float32")
    for i in range(3):
        bits[i] = T.cast(a[i], "int4")
        words[i] = T.broadcast(a[i], 4)
        flag[0] = a[i] > T.float32(0)
        block[i] = T.cast(a[i], "float16")
        some[i] = a[i]
        b[i] = T.Select(flag[0], some[i], T.cast(block[i], "float32"))
""")

vectorized = program("""
def vectorized(a: 8, b: 8):
    x: global 8
    for lane in T.vectorized(8):
        x[lane] = a[lane]
    b[i] = x[7 - i] for i in range(8)
""")


@T.prim_func(s_tir=True)
def with_blocks(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")):
    x = T.sblock_alloc_buffer((8, 8), "float32")
    for i, j in T.grid(8, 8):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = a[vi, vj] * T.float32(2)
    for i, j in T.grid(8, 8):
        with T.sblock("transpose"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = x[vj, vi]


# --------------------------------------------------------------------------------- the counts


def test_counts_bytes_by_scope():
    assert allocations(IRModule.from_expr(every_size)) == {
        "global": Allocations(count=2, nbytes=2 + 5 * 16, symbolic=1),
        "local": Allocations(count=1, nbytes=1),
        "local.UB": Allocations(count=1, nbytes=14),
    }


def test_json_has_the_data():
    # No step is in place, as each reads its operand backwards; x is dead when z begins.
    result = tvm_ext.compare(IRModule({"chain": chain, "copy": copy}))
    data = json.loads(json.dumps(result.plain()))
    use = {"count": 2, "nbytes": 512, "symbolic": 0}
    assert result.equal
    assert data["functions"][0] == {
        "name": "chain",
        "before": {"global": {"count": 3, "nbytes": 768, "symbolic": 0}},
        "stock": {"global": use},
        "ours": {"global": use},
        "difference": None,
        "equal": True,
    }
    assert data["totals"]["functions"] == data["totals"]["equal"] == 2
    assert data["totals"]["ours"] == {"global": use}


# ------------------------------------------------------------------------------- the two passes


def test_a_different_pass_is_told_apart():
    mod = IRModule({"chain": chain, "copy": copy})
    result = tvm_ext.compare(mod, ours=StorageRewrite(enable_reuse=False))
    different, same = result.functions
    assert not different.equal
    assert different.difference
    assert different.stock == {"global": Allocations(count=2, nbytes=512)}
    assert different.ours == different.before
    assert same.equal
    assert not result.equal


def test_a_failing_pass_is_named():
    @tvm.transform.module_pass(opt_level=0, name="broken")
    def broken(_mod, _context):
        raise KeyError("no\nway")

    with pytest.raises(ValueError, match=r"function 'chain': broken fails: "):
        tvm_ext.compare(chain, ours=broken)


# --------------------------------------------------------------------------------- which input


def test_relax_functions_are_left_out():
    mod = IRModule({**OnlyRelax.functions, "chain": chain})
    assert [row.name for row in tvm_ext.compare(mod).functions] == ["chain"]


@pytest.mark.parametrize(
    ("mod", "target", "message"),
    [
        (IRModule({}), None, "no PrimFunc in the module: it is empty"),
        (IRModule({}), "llvm", "no PrimFunc in the module: it is empty"),
        (OnlyRelax, None, "cannot lower 'main' for target kind 'llvm'"),
        (OnlyRelax, "llvm", "cannot lower 'main' .*needs a PrimFunc"),
    ],
)
def test_refuses_a_module_without_prim_func(mod, target, message):
    with pytest.raises(ValueError, match=message):
        tvm_ext.compare(mod, target=target)


@pytest.mark.parametrize(
    ("func", "left"),
    [
        (with_blocks, "it has the block 'double'"),
        (not_flat, "buffer 'x' is not flat, it has 2 dimensions"),
        (vectorized, "loop 'lane' is vectorized"),
    ],
)
def test_refuses_what_is_not_lowered(func, left):
    name = func.attrs["global_symbol"]
    with pytest.raises(ValueError, match=f"function '{name}' is not lowered .*: {left}; name a"):
        tvm_ext.compare(func)


@pytest.mark.parametrize("func", [with_blocks, not_flat])
@pytest.mark.parametrize("target", ["llvm", "cuda", Target("c")])
def test_lowers_for_a_target(func, target):
    (row,) = tvm_ext.compare(func, target=target).functions
    assert row.before == {"global": Allocations(count=1, nbytes=256)}
    assert row.equal


def test_notes_the_target_where_there_is_none():
    bound = chain.with_attr("target", Target("llvm"))
    mod = IRModule({"bound": bound, "free": chain})
    functions = split(mod, target="c").values()
    assert [func.attrs["target"].kind.name for func in functions] == ["llvm", "c"]
