# SPDX-License-Identifier: Apache-2.0
"""``compare``: the command, and the stock ``StorageRewrite`` beside ours."""

from __future__ import annotations

import json
import sys

import pytest
import tvm
from chain import CHAIN, COPY, IMPORTS, NOT_FLAT, ONLY_RELAX
from program_text import program
from saved_json import saved_json
from tvm.ir import IRModule
from tvm.script import tirx as T
from tvm.target import Target

import tvm_ext
from tvm_ext import workloads
from tvm_ext.lowering import split
from tvm_ext.report.readers import rewrites
from tvm_ext.report.readers.rewrites import Allocations, allocations, rewrite
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


def test_json_has_the_data(run, write, tmp_path):
    # No step is in place, as each reads its operand backwards; x is dead when z begins.
    out = str(tmp_path / "out.json")
    run("compare", write("both.py", CHAIN + COPY), "rewrite", "--json", out)
    data = json.loads((tmp_path / "out.json").read_text())
    (table,) = data["facts"]
    assert table["rows"][1] == ["chain", "global", "3/2/2", "768/512/512 B", "yes"]
    assert "the same IR as TVM's in all of 2 functions" in data["notes"][-1]


# ------------------------------------------------------------------------------- the two passes


def test_a_different_pass_is_told_apart():
    ours = StorageRewrite(enable_reuse=False)
    first, second = (rewrite(name, func, ours) for name, func in (("f", chain), ("g", copy)))
    assert first.difference is not None
    assert second.difference is None
    assert allocations(first.ours) == allocations(first.before)


def test_a_failing_pass_is_named():
    @tvm.transform.module_pass(opt_level=0, name="broken")
    def broken(_mod, _context):
        raise KeyError("no\nway")

    with pytest.raises(ValueError, match=r"function 'chain': broken fails: "):
        rewrite("chain", chain, broken)


# --------------------------------------------------------------------------------- which input


def test_relax_functions_are_left_out():
    mod = IRModule({**OnlyRelax.functions, "chain": chain})
    assert list(split(mod)) == ["chain"]


def test_refuses_what_is_not_lowered():
    for func, left in (not_flat, "buffer 'x' .* 2 dimensions"), (vectorized, "loop 'lane' is v"):
        with pytest.raises(ValueError, match=f"is not lowered .*: {left}.*; name a"):
            tvm_ext.compare(func, view="rewrite")


@pytest.mark.parametrize("func", [with_blocks, not_flat])
@pytest.mark.parametrize("target", ["llvm", "cuda", Target("c")])
def test_lowers_for_a_target(func, target):
    ((name, lowered),) = split(func, target=target).items()
    found = rewrite(name, lowered)
    assert allocations(found.before) == {"global": Allocations(count=1, nbytes=256)}
    assert found.difference is None


def test_notes_the_target_where_there_is_none():
    bound = chain.with_attr("target", Target("llvm"))
    mod = IRModule({"bound": bound, "free": chain})
    functions = split(mod, target="c").values()
    assert [func.attrs["target"].kind.name for func in functions] == ["llvm", "c"]


# -------------------------------------------------------------------------------- the command


@pytest.fixture
def other_pass(monkeypatch):
    """Compare the stock pass with one that lets nothing share memory."""
    monkeypatch.setattr(rewrites, "StorageRewrite", lambda: StorageRewrite(enable_reuse=False))


def rows_of(out: str) -> list[list[str]]:
    table = out.split("\n\n")[1]
    return [line.split() for line in table.splitlines()[1:]]


@pytest.mark.parametrize(
    ("name", "text", "functions"),
    [
        ("printed_function.py", chain.script(show_meta=True), ["chain"]),
        ("printed_module.py", IRModule({"chain": chain}).script(show_meta=True), ["chain"]),
        ("no_imports.py", CHAIN + COPY, ["chain", "copy"]),
        ("imports.py", IMPORTS + CHAIN + COPY, ["chain", "copy"]),
        ("constant.py", IMPORTS + "N = 64\n" + CHAIN.replace("64", "N"), ["chain"]),
        ("marked.py", b"\xef\xbb\xbf" + CHAIN.encode(), ["chain"]),
        (
            "built.py",
            f"import tvm\n{IMPORTS}{CHAIN}\nmod = tvm.IRModule({{'chain': chain}})",
            ["chain"],
        ),
        ("module.json", saved_json(IRModule({"chain": chain})), ["chain"]),
        ("function.json", saved_json(chain), ["chain"]),
    ],
)
def test_reads_files(run, write, name, text, functions):
    status, out, err = run("compare", write(name, text), "rewrite")
    assert (status, err) == (0, "")
    rows = rows_of(out)
    assert [row[0] for row in rows] == functions
    assert rows[0][1:6] == ["global", "3/2/2", "768/512/512", "B", "yes"]


def test_a_script_may_import_its_neighbours(run, write):
    write("neighbour_of_the_program.py", "SIZE = 64\n")
    text = IMPORTS + "from neighbour_of_the_program import SIZE\n" + CHAIN.replace("64", "SIZE")
    path_before = list(sys.path)
    status, out, _ = run("compare", write("program.py", text), "rewrite")
    assert (status, rows_of(out)[0][2]) == (0, "3/2/2")
    assert sys.path == path_before


def test_compares_resnet_by_default(run, tmp_path):
    out_path = tmp_path / "out.json"
    status, out, err = run("compare", "--json", str(out_path))
    assert (status, err) == (0, "")
    data = json.loads(out_path.read_text())
    assert (
        data["title"] == "resnet18 (lowered for llvm, as no target is named)"
        or data["title"] == "resnet18"
    )
    fused, plain, *_kernels = data["memories"]
    assert (fused["name"], plain["name"]) == ("tensors, fused", "tensors, not fused")
    for row in (fused, plain):
        stock, best = row["plans"]
        assert (stock["planner"], best["planner"]) == ("stock", "best")
        assert stock["peak"] > best["peak"] == row["bound"]
        assert f" {row['bound']:,} " in out
    assert "StorageRewrite: the same IR as TVM's in all of" in out


def test_lists_workloads(run, tmp_path):
    path = tmp_path / "list.json"
    status, out, _ = run("compare", "--list", "--json", str(path))
    assert status == 0
    assert {row["name"] for row in json.loads(path.read_text())} >= {*workloads.NETWORKS}
    found = {line.split()[0] for line in out.splitlines() if line[:1].strip()}
    assert found >= {*workloads.NETWORKS, *(f"ascend:{k}" for k in workloads.ascend_kernels())}


@pytest.mark.usefixtures("other_pass")
def test_a_difference_is_reported(run, write, tmp_path):
    out = tmp_path / "out.json"
    status, text, err = run(
        "compare", write("both.py", CHAIN + COPY), "rewrite", "--json", str(out)
    )
    assert (status, err) == (1, "")
    assert [row[0] for row in rows_of(text)] == ["chain", "copy"]
    assert rows_of(text)[0][2:6] == ["3/2/3", "768/512/768", "B", "NO"]
    assert "other IR than TVM's in 1 of 2 functions (chain)" in text
    assert "alloc_buffer" in text.split("the first function that differs: chain: ")[1]
    assert json.loads(out.read_text())["facts"][0]["rows"][2][4] == "yes"


@pytest.mark.usefixtures("other_pass")
def test_a_difference_is_said_in_the_line_below_the_plans(run, write):
    status, text, _ = run("compare", write("both.py", CHAIN + COPY))
    assert status == 1
    assert "StorageRewrite: other IR than TVM's in 1 of 2 functions (chain)" in text
