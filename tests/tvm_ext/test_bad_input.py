# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a command is said in one line; nothing is printed or written then."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import tvm
from chain import CHAIN, COPY, IMPORTS, NOT_FLAT, ONLY_RELAX
from saved_json import saved_json
from tvm import tirx

from tvm_ext.__main__ import main

ROWS = "id,lower,upper,size,uses,touches\nlong,0,10,4,4,0 1 2 9\nbig,3,6,8,9,\n"

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


@pytest.fixture(scope="module")
def chain() -> str:
    return saved_json(tvm.script.from_source(CHAIN))


@pytest.fixture
def folder(write, monkeypatch, chain) -> Path:
    """A working directory with a program and a table."""
    write("table.csv", ROWS)
    write("chain.json", chain)
    found = Path(write("chain.py", CHAIN)).parent
    monkeypatch.chdir(found)
    return found


def refused(run, *command: str) -> str:
    """Run a command that has to fail, and return what it says."""
    status, out, err = run(*command)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("tvm-ext: error: ")
    return err.removeprefix("tvm-ext: error: ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-command", "argument COMMAND: invalid choice: 'no-such-command'"),
        ("compare no_such.py --json out.json", "no_such.py: no such file"),
        ("compare table.csv --target llvm", ".*has no target"),
        ("compare table.csv --memories sram:8,dram --target llvm", ".*has no target"),
        ("compare x.csv", "x.csv: no such file"),
        ("compare none/", "unknown workload 'none/'"),
        ("compare resnet81", "unknown workload 'resnet81': did you mean 'resnet18'?"),
        ("compare gelu", "unknown workload 'gelu': did you mean 'ascend:gelu'?"),
        ("compare chain.py --target nowhere", "unknown target 'nowhere': .*not defined"),
        ("compare chain.py --target=", "unknown target ''"),
        ("compare chain.py --target bm1684x", ".*: did you mean 'sophgo/bm1684x'"),
        ("compare chain.py --target nvidia", r".*: did you mean .* or one of \d+ others\? "),
        ('compare chain.py --target {"kind"', "unknown target"),
        ("compare bert --target nowhere", "unknown target 'nowhere'"),
        ("compare chain.py --json .", r"cannot write \.: it is a directory"),
        ("compare chain.py --json no/o.json", "cannot write no/o.json: .* directory no"),
        ("compare chain.py --json chain.py/o", "cannot write chain.py/o: "),
        ("compare chain.py --json /dev/full", "/dev/full: No space left"),
        ("compare --list --json /dev/full", "/dev/full: No space left"),
        ("compare chain.py --json", "argument --json: expected one argument"),
        ("compare --no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("compare ascend:gelu --planners nope", "unknown planner 'nope'"),
        (
            "compare ascend:gelu nonsense",
            "argument VIEW: invalid choice: 'nonsense'",
        ),
        ("compare resnet18 groups --memories sram:8,dram", ".* with --memories"),
        ("compare resnet18 groups --target nonsense", ".*nonsense"),
        ("compare resnet18 groups --target llvm", ".*local.LMEM"),
        ("compare table.csv groups", "table.csv: buffers without a program of TVM have no view"),
        ("compare table.csv shared", "table.csv: buffers without a program of TVM have no view"),
        ("compare ascend:gelu --executorch", ".*ExecuTorch plans programs of PyTorch"),
        *((f"{each} ''", "the name .* is empty") for each in ("compare", "plan", "map -o a.html")),
        ("compare . --onnxruntime", ".*onnxruntime runs ONNX networks"),
        ("compare no_such.onnx --onnxruntime", "no_such.onnx: No such file"),
        ("compare bert order --onnxruntime", "--onnxruntime means nothing with the view 'order'"),
        ("compare x.pt2 --executorch", "x.pt2: no such file"),
        ("compare chain.json --bind n", "expected NAME=8, got 'n'"),
        ("map nosuch -o a.html", "unknown workload 'nosuch'"),
        ("map ascend:gelu -o a.txt", ".*the name must end in one of .html, .json"),
        ("map ascend:gelu -o none/a.html", ".*there is no directory"),
        ("map ascend:gelu -o a.html --planners nosuch", "unknown planner 'nosuch'"),
        ("map ascend:gelu -o a.html --scopes local.XX", ".*no scope 'local.XX' to show"),
        ("map ascend:gelu -o a.html --functions f", ".*no function 'f' to show; there are: gelu"),
        ("map ascend:gelu -o a.html --capacity 9", ".*a program has its target's"),
        ("map ascend:gelu -o a.html --target nosuch", "unknown target 'nosuch'"),
        ("map ascend:gelu shared -o a.html", ".*there is no buffer to plan"),
        ("map ascend:gelu", ".*-o/--output"),
        ("map bert groups -o a.html --time-limit 1", ".*limits of their own"),
        ("map table.csv -o a.html --target llvm", ".*has no target"),
        ("map table.csv order -o a.html", ".*have no view 'order'"),
        ("map x.pte order -o a.html", ".*have no view 'order'"),
        ("map x.pte -o a.html --planners stock", ".*have no plan 'stock'"),
        ("map x.pte -o a.html --bind n=8", ".*has its memories, its target and its sizes"),
        ("map table.csv -o a.txt --memories sram:8,dram", ".*must end in one of .html, .json"),
        *(
            (f"map table.csv -o a.html --memories sram:8,dram {option}", ".* with --memories")
            for option in ("--scopes x", "--functions f", "--planners best")
        ),
        ("compare table.csv --memories sram:8,dram --bind n=8", ".*inputs whose sizes are open"),
        ("plan missing.csv", "missing.csv: No such file"),
        ("plan table.csv --planners nope", "unknown planner 'nope'"),
        ("plan table.csv --capacity 0", ".*capacity must be an integer of at least 1, got 0"),
        ("plan table.csv --capacity 2MB", "argument --capacity: expected bytes such as"),
        ("plan table.csv --alignment 3", ".*alignment must be a power of two, got 3"),
        ("plan table.csv --time-limit -1", "--time-limit must be seconds from 0 up, got -1"),
        ("plan table.csv --output /dev/full", "/dev/full: No space left"),
        ("plan table.csv --json /dev/full", "/dev/full: No space left"),
        ("plan table.csv --output .", "cannot write .: it is a directory"),
        ("plan table.csv --memories sram:8", ".*needs two memories or more"),
        ("plan table.csv --memories a,a", ".*'a' is given twice"),
        ("plan table.csv --memories a:1:2:3,b", r".*expected NAME\[:BYTES\[:ALIGNMENT\]\]"),
        ("plan table.csv --memories a:much,b", "--memories: 'a:much': expected bytes such as 4096"),
        ("plan table.csv --memories a:8,b:0", "--memories: 'b:0': .*of at least 1, got 0"),
        ("plan table.csv --memories a,b --capacity 8", "--capacity means nothing with --memories"),
        ("plan table.csv --moves", "--moves needs --memories"),
    ],
)
def test_bad_arguments(run, folder, command, message):
    before = sorted(folder.iterdir())
    assert re.match(message, refused(run, *(word.strip("'") for word in command.split())))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "command",
    [
        "compare chain.py --json chain.py",
        "compare chain.py:chain --json chain.py",
        "compare chain.json --json ../{folder}/chain.json",
        "compare . --planners best --json chain.json",
        "compare chain.json order --json chain.json",
        "plan table.csv --json table.csv",
        "plan table.csv -o new.csv --json new.csv",
        *(f"plan table.csv -o {name}" for name in ("./table.csv", "link.csv", "hard.csv")),
    ],
)
def test_no_command_writes_over_what_it_reads(run, folder, command):
    (folder / "link.csv").symlink_to(folder / "table.csv")
    (folder / "hard.csv").hardlink_to(folder / "table.csv")
    texts = {path: path.read_text() for path in folder.iterdir()}
    assert "cannot write" in refused(run, *command.format(folder=folder.name).split())
    assert {path: path.read_text() for path in folder.iterdir()} == texts


# -------------------------------------------------------------------------------- bad files


def graph(*nodes: dict[str, object], root: int = 0) -> str:
    return json.dumps({"root_index": root, "nodes": nodes, "metadata": {"tvm_version": "0.27.0"}})


MODULE_FIELDS = ("functions", "global_var_map_", "source_map", "attrs", "global_infos")
SAVED = saved_json(tvm.IRModule.from_expr(tvm.script.from_source(CHAIN)))


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
        ("interrupts.py", "\nraise BaseException('stop')\n", "PATH:2: BaseException: stop"),
        ("exits.py", "import sys\nsys.exit('bye')\n", "PATH:2: SystemExit: bye"),
        ("twice.py", IMPORTS + CHAIN + "f = chain\n" + CHAIN, "PATH: defines two functions .*'ch"),
        ("modules.py", IMPORTS + BLOCKS + BLOCKS.replace("Module", "M2"), "PATH: .*Module, M2"),
        ("beside.py", IMPORTS + BLOCKS + COPY, "PATH: defines function 'copy' beside .* Module;"),
        ("latin.py", "# caf\xe9".encode("latin-1"), "PATH: not UTF-8 text"),
        ("only_relax.py", ONLY_RELAX, "PATH: cannot lower 'main' .*'llvm': .*computes nothing"),
        ("no_functions.py", "@I.ir_module\nclass M:\n    pass", "PATH: no PrimFunc .* is empty"),
        ("not_flat.py", NOT_FLAT, "PATH: function 'square': buffer 'x' .*run FlattenBuffer first"),
        ("blocks.py", BLOCKS, "PATH: function 'double' is not lowered .*: it has the block 'twi"),
        ("empty.json", "", "PATH: the file is empty"),
        ("garbage.json", "tvm", "PATH:1: not JSON: Expecting value"),
        ("truncated.json", SAVED[: len(SAVED) // 2], "PATH:1: not JSON: "),
        ("list.json", "[1, 2]", "PATH: not a module saved "),
        ("nodes.json", '{"nodes": [1]}', "PATH: not a module saved "),
        ("no_root.json", '{"nodes": []}', "PATH: not a module saved .*"),
        ("no_nodes.json", graph(), "PATH: not a module saved .*invalid node index 0"),
        ("root.json", graph({"type": "None"}, root=9), "PATH: not a module saved .*index 9"),
        ("type.json", graph({"type": "no.Such", "data": {}}), "PATH: not a module .*no.Such"),
        (
            "of_itself.json",
            graph({"type": "ir.IRModule", "data": dict.fromkeys(MODULE_FIELDS, 0)}),
            "PATH: not a module saved .*: node 0 refers to one that does not stand before it",
        ),
        ("loop.json", graph(*({"type": "ffi.Array", "data": [n]} for n in (1, 0))), "PATH.*node 0"),
        ("int.json", graph({"type": "int", "data": 3}), "PATH: .* of type int, not an IRModule"),
        ("expr.json", saved_json(tirx.IntImm("int32", 3)), "PATH: .*object of type IntImm"),
        (
            "program.txt",
            CHAIN,
            "PATH: the name of a file must end in .json, .py, .*, .csv, .pte, .tflite",
        ),
        ("weights.pth", "", "PATH: .*torch.export.save writes a .pt2"),
    ],
)
def test_bad_files(run, write, name, text, message):
    path = write(name, text)
    said = refused(run, "compare", path)
    assert re.match(message.replace("PATH", re.escape(path)), said), said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ""),
        (b"\xff\xfe\x00", ""),
        (b"id,lower,upper,size\na,1,0,4\n", ""),
        (b"id,lower,upper,size,uses\na,0,3,4,x\n", "uses must be an integer"),
        (b"id,lower,upper,size,touches\na,0,3,4,1 7\n", "touched at 7, where it does not live"),
        (b"id,lower,upper,size,allowed\na,0,3,4,disk\n", "no memory 'disk'"),
    ],
)
def test_a_fault_of_a_table_names_the_table(run, write, content, message):
    path = write("bad.csv", content)
    said = refused(run, "plan", path, *(["--memories", "sram:8,dram"] if message else []))
    assert message in said
    assert path in said


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x00" * 64])
def test_a_bad_network_names_the_file(run, write, content):
    pytest.importorskip("onnx", reason="the package onnx is not there")
    assert "bad.onnx: " in refused(run, "compare", write("bad.onnx", content))


@pytest.mark.parametrize(
    ("name", "package", "options", "install"),
    [
        ("network.pt2", "torch", [], "'.[torch]'"),
        ("network.onnx", "onnx", [], "'.[onnx]'"),
        ("network.pt2", "executorch", ["--executorch"], "executorch"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_way_to_install_it(
    write, monkeypatch, run, name, package, options, install
):
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(run, "compare", write(name, b"network"), *options)
    assert f"needs the package {package}" in said
    assert said.endswith(f"pip install {install}\n")


def test_a_folder_that_cannot_be_read_and_a_stream_that_is_closed(run, folder, monkeypatch):
    def scandir(path):
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as unreadable:
        unreadable.setattr(os, "scandir", scandir)
        assert refused(run, "compare", ".") == ".: Permission denied\n"
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["plan", "table.csv"]) == 0


FAILING = """
def raises(problem, budget):
    raise RuntimeError("out of ideas")
"""


def test_a_planner_that_raises_is_named(run, folder, write, capsys):
    write("failing_planner.py", FAILING)
    planners = ["--planners", "failing_planner:raises"]
    for command in (
        ["plan", "table.csv"],
        ["compare", "table.csv"],
        ["map", "table.csv", "-o", "o.svg"],
    ):
        said = refused(run, *command, *planners)
        assert "planner 'failing_planner:raises' raised RuntimeError: out of ideas" in said
    status, _, err = run("-v", "plan", "table.csv", *planners)
    assert status == 2
    assert "Traceback" in err
