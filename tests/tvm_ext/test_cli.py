# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from chain import CHAIN
from tvm import tirx

from tvm_ext import compare, workloads
from tvm_ext.comparison import storage_rewrite
from tvm_ext.transform import StorageRewrite

COPY = """
@T.prim_func(s_tir=True)
def copy(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    for i in range(4):
        b[i] = a[i]
"""

IMPORTS = "from tvm.script import ir as I, relax as R, tirx as T\n"

NOT_FLAT = """
@T.prim_func(s_tir=True)
def square(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")):
    x = T.alloc_buffer((8, 8), "float32")
    for i, j in T.grid(8, 8):
        x[i, j] = a[j, i]
    for i, j in T.grid(8, 8):
        b[i, j] = x[i, j]
"""

BLOCKS = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("twice"):
                vi = T.axis.spatial(8, i)
                b[vi] = a[vi] * T.float32(2)
"""

ONLY_RELAX = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x
"""


RELAX_CHAIN = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((32, 32), "float32")) -> R.Tensor((32, 32), "float32"):
        with R.dataflow():
            a = R.exp(x)
            b = R.tanh(a)
            c = R.exp(b)
            d = R.tanh(c)
            R.output(d)
        return d
"""


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


def test_a_relax_file_with_a_target_is_lowered(run, write, tmp_path):
    out_path = tmp_path / "out.json"
    source = write("chain.py", IMPORTS + RELAX_CHAIN)
    status, _out, err = run("compare", source, "--target", "llvm", "--json", str(out_path))
    assert (status, err) == (0, "")
    scopes = json.loads(out_path.read_text())["scopes"]
    (memory,) = (one for one in scopes if one["scope"].startswith("tensors"))
    assert memory["scope"] == "tensors, not fused"  # fused, none is left
    assert memory["no_reuse"] == 3 * 4096
    assert memory["stock"] == memory["lower_bound"] == 2 * 4096


def test_no_tensors_are_shown_of_what_is_no_network(run, write):
    _, out, _ = run("compare", write("chain.py", CHAIN))
    assert "tensors" not in out


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


# ----------------------------------------------------------------------------------- bad input


def graph(*nodes: dict[str, object], root: int = 0) -> str:
    return json.dumps({"root_index": root, "nodes": nodes, "metadata": {"tvm_version": "0.27.0"}})


MODULE_FIELDS = ("functions", "global_var_map_", "source_map", "attrs", "global_infos")
SAVED = tvm.ir.save_json(parse(CHAIN))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("syntax.py", "x = 1\ndef f(:\n    pass", "PATH:2: not TVMScript: invalid syntax"),
        ("prose.py", "To be, or not to be", "PATH:1: not TVMScript: invalid syntax"),
        ("nul.py", "x = 1\0", "PATH.*: not TVMScript: .*null bytes"),
        ("empty.py", " \n", "PATH: the file is empty"),
        ("comment.py", "# nothing\n", "PATH: not TVMScript: it defines no PrimFunc and no"),
        ("plain.py", "def f():\n    return 1", "PATH:1: not TVMScript: Function must be decorated"),
        ("plain_import.py", "import os\ndef f():\n    return 1", "PATH: not TVMScript: it defines"),
        ("name.py", CHAIN.replace("64)", "M)", 1), "PATH:7: not TVMScript: Undefined variable: M"),
        ("name_import.py", IMPORTS + CHAIN.replace("range(64)", "range(M)", 1), "PATH:8: .*: M"),
        ("raises.py", "import os\n\nos.no_such\n", "PATH:3: AttributeError: module 'os' has no"),
        ("interrupts.py", "\nraise KeyboardInterrupt\n", "PATH:2: KeyboardInterrupt"),
        ("exits.py", "import sys\nsys.exit('bye')\n", "PATH:2: SystemExit: bye"),
        ("twice.py", IMPORTS + CHAIN + "f = chain\n" + CHAIN, "PATH: defines two functions .*'ch"),
        ("modules.py", IMPORTS + BLOCKS + BLOCKS.replace("Module", "M2"), "PATH: .*Module, M2"),
        ("beside.py", IMPORTS + BLOCKS + COPY, "PATH: defines function 'copy' beside .* Module;"),
        ("latin.py", "# caf\xe9".encode("latin-1"), "PATH: not UTF-8 text"),
        ("only_relax.py", ONLY_RELAX, "PATH: cannot lower 'main' .*'llvm': .*needs a PrimFunc"),
        ("no_functions.py", "@I.ir_module\nclass M:\n    pass", "PATH: no PrimFunc .* is empty"),
        ("not_flat.py", NOT_FLAT, "PATH: function 'square': buffer 'x' .*run FlattenBuffer before"),
        ("blocks.py", BLOCKS, "PATH: function 'double' is not lowered .*: it has the block 'twi"),
        ("empty.json", "", "PATH: the file is empty"),
        ("garbage.json", "tvm", "PATH:1: not JSON: Expecting value"),
        ("truncated.json", SAVED[: len(SAVED) // 2], "PATH:1: not JSON: "),
        ("list.json", "[1, 2]", "PATH: not a module saved .*: it has no list of nodes"),
        ("nodes.json", '{"nodes": [1]}', "PATH: not a module saved .*: node 0 has no type"),
        ("no_root.json", '{"nodes": []}', "PATH: not a module saved .*"),
        ("no_nodes.json", graph(), "PATH: not a module saved .*invalid node index 0"),
        ("root.json", graph({"type": "None"}, root=9), "PATH: not a module saved .*index 9"),
        ("type.json", graph({"type": "no.Such", "data": {}}), "PATH: not a module .*no.Such"),
        (
            "of_itself.json",
            graph({"type": "ir.IRModule", "data": dict.fromkeys(MODULE_FIELDS, 0)}),
            "PATH: not a module saved .*: node 0 refers to one that does not stand before it",
        ),
        (
            "cycle.json",
            graph({"type": "ffi.Array", "data": [1]}, {"type": "ffi.Array", "data": [0]}),
            "PATH: not a module saved .*: node 0 refers to one that does not stand before it",
        ),
        ("int.json", graph({"type": "int", "data": 3}), "PATH: holds a int, not an IRModule"),
        ("expr.json", tvm.ir.save_json(tirx.IntImm("int32", 3)), "PATH: holds a IntImm, not an"),
        (
            "relax.json",
            tvm.ir.save_json(parse(ONLY_RELAX)),
            "PATH: cannot lower 'main' .*'llvm': .*needs a PrimFunc",
        ),
        ("program.txt", CHAIN, "PATH: the name of a file ends in .json, .py, "),
    ],
)
def test_bad_files(run, write, name, text, message):
    path = write(name, text)
    status, out, err = run("compare", path)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("tvm-ext: error: ")
    assert re.match(message.replace("PATH", re.escape(path)), err[len("tvm-ext: error: ") :]), err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["compare", "no_such.py"], "no_such.py: no such file"),
        (["compare", "no_such.json"], "no_such.json: no such file"),
        (["compare", "none/"], "unknown workload 'none/'"),
        (["compare", "resnet81"], "unknown workload 'resnet81': did you mean 'resnet18'?"),
        (["compare", "chain.py", "--target", "nowhere"], "unknown target 'nowhere': .*not defined"),
        (["compare", "chain.py", "--target", ""], "unknown target ''"),
        (["compare", "chain.py", "--target", "bm1684x"], ".*: did you mean 'sophgo/bm1684x'"),
        (["compare", "chain.py", "--target", '{"kind"'], "unknown target"),
        (["compare", "softmax", "--target", "nowhere"], "unknown target 'nowhere'"),
        (["compare", "chain.py", "--json", "."], r"cannot write \.: it is a directory"),
        (["compare", "chain.py", "--json", "no/o.json"], "cannot write no/o.json: .* directory no"),
        (["compare", "chain.py", "--json", "chain.py/o"], "cannot write chain.py/o: "),
        (["compare", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["compare", "chain.py", "--json"], "argument --json: expected one argument"),
        (["no-such-command"], "argument COMMAND: invalid choice: 'no-such-command'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_arguments(run, write, monkeypatch, args, message):
    monkeypatch.chdir(Path(write("chain.py", CHAIN)).parent)
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert re.match("tvm-ext: error: " + message, err), err


def test_the_file_is_not_written_on_bad_input(run, write, tmp_path):
    out = tmp_path / "out.json"
    assert run("compare", write("empty.py", ""), "--json", str(out))[0] == 2
    assert not out.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk_is_said_with_the_file(run, write):
    status, _, err = run("compare", write("chain.py", CHAIN), "--json", "/dev/full")
    assert (status, err) == (2, "tvm-ext: error: /dev/full: No space left on device\n")


def test_runs_as_a_module(write):
    def python(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tvm_ext", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    bad = python("plan", write("table.csv", "id,lower,upper\na,0,2\n"))  # It imports no TVM.
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("python -m tvm_ext: error: ")
    assert bad.stderr.count("\n") == 1
