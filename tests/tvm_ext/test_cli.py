# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tvm
from chain import CHAIN, COPY, IMPORTS

from tvm_ext import compare, workloads
from tvm_ext.comparison import storage_rewrite
from tvm_ext.transform import StorageRewrite


def parse(text: str) -> tvm.IRModule:
    parsed = tvm.script.from_source(text)
    return parsed if isinstance(parsed, tvm.IRModule) else tvm.IRModule.from_expr(parsed)


@pytest.fixture
def other_pass(monkeypatch):
    """Compare the stock pass with one that lets nothing share memory."""
    monkeypatch.setattr(
        storage_rewrite, "StorageRewrite", lambda: StorageRewrite(enable_reuse=False)
    )


def rows_of(out: str) -> list[list[str]]:
    table = out.split("\n\n")[1]
    return [line.split() for line in table.splitlines()[1:]]


# --------------------------------------------------------------------------------- good input


@pytest.mark.parametrize(
    ("name", "text", "functions"),
    [
        ("printed_function.py", parse(CHAIN)["chain"].script(show_meta=True), ["chain"]),
        ("printed_module.py", parse(CHAIN).script(show_meta=True), ["chain"]),
        ("no_imports.py", CHAIN + COPY, ["chain", "copy"]),
        ("imports.py", IMPORTS + CHAIN + COPY, ["chain", "copy"]),
        ("constant.py", IMPORTS + "N = 64\n" + CHAIN.replace("64", "N"), ["chain"]),
        ("marked.py", b"\xef\xbb\xbf" + CHAIN.encode(), ["chain"]),
        (
            "built.py",
            f"import tvm\n{IMPORTS}{CHAIN}\nmod = tvm.IRModule({{'chain': chain}})",
            ["chain"],
        ),
        ("module.json", tvm.ir.save_json(parse(CHAIN)), ["chain"]),
        ("function.json", tvm.ir.save_json(parse(CHAIN)["chain"]), ["chain"]),
    ],
)
def test_reads_files(run, write, name, text, functions):
    status, out, err = run("compare", write(name, text), "--storage-rewrite")
    assert (status, err) == (0, "")
    rows = rows_of(out)
    assert [row[0] for row in rows] == functions
    assert rows[0][1:6] == ["global", "3/2/2", "768/512/512", "B", "yes"]


def test_a_script_may_import_its_neighbours(run, write):
    write("neighbour_of_the_program.py", "SIZE = 64\n")
    text = IMPORTS + "from neighbour_of_the_program import SIZE\n" + CHAIN.replace("64", "SIZE")
    path_before = list(sys.path)
    status, out, _ = run("compare", write("program.py", text), "--storage-rewrite")
    assert (status, rows_of(out)[0][2]) == (0, "3/2/2")
    assert sys.path == path_before


def test_compares_resnet_by_default(run, tmp_path):
    out_path = tmp_path / "out.json"
    status, out, err = run("compare", "--json", str(out_path))
    assert (status, err) == (0, "")
    data = json.loads(out_path.read_text())
    assert data["program"] == "resnet18"
    fused, plain, *_kernels = data["scopes"]
    assert (fused["scope"], plain["scope"]) == ("tensors, fused", "tensors, not fused")
    for row in (fused, plain):
        assert [plan["planner"] for plan in row["plans"]] == ["best"]
        assert row["stock"] > row["lower_bound"]
        assert f" {row['lower_bound']:,} " in out
    totals = data["storage_rewrite"]
    assert totals["equal"] == totals["functions"] > 1
    counts = [totals[when]["global"]["count"] for when in ("before", "stock", "ours")]
    assert counts[0] > counts[1] == counts[2]
    assert f"StorageRewrite: the same IR as TVM's in all of {totals['functions']} functions" in out


def test_json_is_what_compare_gives(run, write, tmp_path):
    out = tmp_path / "out.json"
    assert run("compare", write("chain.py", CHAIN), "--json", str(out), "--storage-rewrite")[0] == 0
    assert json.loads(out.read_text()) == compare(parse(CHAIN)).plain()


def test_lists_workloads(run):
    status, out, _ = run("compare", "--list")
    assert status == 0
    found = {line.split()[0] for line in out.splitlines() if line[:1].strip()}
    assert found >= {*workloads.NETWORKS, *(f"ascend:{k}" for k in workloads.ascend_kernels())}


# ---------------------------------------------------------------------------------- difference


@pytest.mark.usefixtures("other_pass")
def test_a_difference_is_reported(run, write, tmp_path):
    out = tmp_path / "out.json"
    status, text, err = run(
        "compare", write("both.py", CHAIN + COPY), "--json", str(out), "--storage-rewrite"
    )
    assert (status, err) == (1, "")
    assert [row[0] for row in rows_of(text)] == ["chain", "copy"]
    assert rows_of(text)[0][2:6] == ["3/2/3", "768/512/768", "B", "NO"]
    assert "2 functions: 1 equal, 1 different" in text
    assert "alloc_buffer" in text.split("the first function that differs: chain\n")[1]
    chain, copy = json.loads(out.read_text())["functions"]
    assert chain["difference"]
    assert copy["difference"] is None


@pytest.mark.usefixtures("other_pass")
def test_a_difference_is_said_in_the_line_below_the_plans(run, write):
    status, text, _ = run("compare", write("both.py", CHAIN + COPY))
    assert status == 1
    assert "StorageRewrite: other IR than TVM's in 1 of 2 functions (chain)" in text


def test_runs_as_a_module(write):
    def python(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tvm_ext", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    bad = python("plan", write("table.csv", "id,lower,upper\na,0,2\n"))  # It imports no TVM.
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("python -m tvm_ext: error: ")
    assert bad.stderr.count("\n") == 1
