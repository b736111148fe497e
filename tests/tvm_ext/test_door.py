# SPDX-License-Identifier: Apache-2.0
"""What ``import tvm_ext`` gives, what it costs a command, and what may stand in its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tvm

import tvm_ext
from tvm_ext.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[2]


def python(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environment},
    )


def test_no_name_is_a_module_of_another_kind():
    # Importing such a module would put it in the place of what is meant.
    modules = {path.stem for path in (ROOT / "tvm_ext").glob("*")}
    assert modules & set(tvm_ext.__all__) == {"transform"}


def test_importing_makes_names_known_and_waits_for_no_pass_map_or_drawing(tmp_path):
    (tmp_path / "mypkg").mkdir()
    # In the order that is easy to get wrong: ours first.
    (tmp_path / "mypkg" / "__init__.py").write_text("import tvm_ext, tvm\n")
    known = (
        "import sys, tvm; print(*sorted(sys.modules), sep='\\n')\n"
        "tvm.tirx.get_tir_pipeline('tvm_ext.ascend'); tvm.target.Target('ascend/910b-llvm')\n"
        "import tvm_ext; tvm_ext.what_fits  # first, and by way of no cycle of imports\n"
        "from importlib.resources import files; assert (files('tvm') / '__init__.py').is_file()\n"
    )
    (tmp_path / "mypkg" / "__main__.py").write_text(known)
    done = python("-m", "mypkg", "plan", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    imported = set(done.stdout.split())
    assert {"passes.planning", "target_hw.target"} <= imported
    late = ("matplotlib", "onnx", "passes.driver", "tvm_ext.pipeline", "tvm_ext.report.readers")
    ours = ("passes.", "tvm_ext.")
    assert not [
        name
        for name in imported
        if name.startswith(late) or (name.startswith(ours) and name.endswith(".transform"))
    ]


def test_what_needs_no_tvm_imports_none(tmp_path):
    code = (
        "import sys; sys.modules['tvm'] = None\n"
        "from tvm_ext import Buffer, MemoryScope, Problem, compare, memory_map, solve, verify\n"
        "problem = Problem((Buffer('a', 8, ((0, 2),)), Buffer('b', 8, ((2, 3),))))\n"
        "assert verify(problem, solve(problem)) == ()\n"
        "compare(problem); memory_map(problem).save('map.html')\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "map.html").is_file()


def test_tvm_knows_our_names_where_it_is_imported_first(tmp_path):
    code = (
        "import tvm, tvm_ext\n"
        "tvm.tirx.get_tir_pipeline('tvm_ext.arena'); tvm.target.Target('ascend/910b-llvm')\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_form_of_addresses_has_a_pipeline():
    for name in ("", ".ascend", *(f".{form}" for form in tvm_ext.transform.FORMS)):
        lower, *_ = tvm.tirx.get_tir_pipeline(f"tvm_ext{name}")
        assert lower.info.name == "tvm_ext.tir_pipeline"
    with pytest.raises(TypeError, match="'alignmnt'"):
        tvm.tirx.get_tir_pipeline("tvm_ext.arena", alignmnt=64)


def test_every_name_is_there_and_they_are_few():
    assert len(tvm_ext.__all__) <= 35
    assert all(getattr(tvm_ext, name) is not None for name in tvm_ext.__all__)
    assert set(tvm_ext.__all__) <= set(dir(tvm_ext))
    with pytest.raises(AttributeError, match="'tvm_ext' has no attribute 'nothing'"):
        _ = tvm_ext.nothing


def test_planning_a_table_imports_no_tvm(tmp_path):
    (tmp_path / "table.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\n")
    done = python("-X", "importtime", "-m", "tvm_ext", "plan", "table.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("peak 128 bytes")) == (0, 1)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "passes.planning" in imported
    assert not {"tvm", "tvm_ffi", "matplotlib"} & imported


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_description(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"tvm-ext {command}" in text
    assert "Exit status" in text


@pytest.mark.parametrize(
    "files",
    [("passes/__init__.py",), ("passes.py",), ("target_hw/__init__.py", "target_hw/chips.py")],
)
def test_a_package_of_the_users_own_is_named(tmp_path, files):
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise RuntimeError('not to be run')\n")
    done = python("-m", "tvm_ext", "plan", "x.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert str(tmp_path / files[0]) in done.stderr
    done = python("-c", "import tvm_ext", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: tvm_ext needs its own package")
    assert str(tmp_path / files[0]) in last


def test_a_plain_folder_of_the_users_own_hides_nothing(tmp_path):
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "mine.py").write_text("")
    done = python("-m", "tvm_ext", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
