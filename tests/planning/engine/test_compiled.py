# SPDX-License-Identifier: Apache-2.0
"""What is imported and compiled when, and the cache of compiled loops, each in a new process."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from passes.planning.engine import compiled
from passes.planning.memories import filling_loop
from passes.planning.planners import canonical_loop as branch_and_bound
from passes.planning.planners import first_fit_loop as sweep
from passes.planning.planners import relocation_loop as neighborhood
from passes.planning.planners.allocation_loop import advance

ROOT = Path(__file__).parents[3]
assert (ROOT / "passes").is_dir()

# Buffers on which the search outlasts the turns that are taken without the compiled loop.
HARD = """
import random, sys
from passes.planning.engine import compiled
from passes.planning.planners.canonical_loop import advance
compiled.loop(advance)
from passes.planning import Budget, Buffer, Problem, solve
rng = random.Random(11)
buffers = []
for index in range(150):
    begin = rng.randrange(100)
    live = ((begin, begin + rng.randrange(1, 40)),)
    buffers.append(Buffer(f"b{index}", rng.randrange(1, 500), live))
plan = solve(Problem(tuple(buffers)), "best", Budget(5000))
print(plan.peak, plan.nodes, *sorted(plan.offsets.items()), sep=",")
print("tvm" in sys.modules)
"""


def start(code, cache):
    environment = {**os.environ, compiled.CACHE_VARIABLE: str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(code, cache):
    """Return what a new process prints, line by line."""
    process = start(code, cache)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.splitlines()


def modules_after(code, cache):
    shown = "\nimport sys; print(*sorted(sys.modules), sep='\\n')"
    return set(run(code + shown, cache))


def test_importing_the_planners_imports_none_of_them_and_no_tvm(tmp_path):
    loaded = modules_after("import passes.planning", tmp_path)
    assert "passes.planning.planner" in loaded
    for package in ("planning.planners", "planning.engine", "ascend", "gmem", "storage_rewrite"):
        assert not [name for name in loaded if name.startswith(f"passes.{package}")]
    assert not loaded & {"tvm", "tvm_ffi"}


def test_small_problems_load_no_compiled_loop(tmp_path):
    code = (
        "import passes.ascend\n"
        "from passes.planning import *\n"
        "buffers = tuple(Buffer(f'b{i}', 8 * i + 8, ((i, i + 3),)) for i in range(40))\n"
        "assert solve(Problem(buffers), 'best').status is Status.OPTIMAL\n"
        "solve(Problem(buffers, MemoryScope('local', 400)), 'three_level')"
    )
    code = "from target_hw.memory import MemoryScope\n" + code
    assert not modules_after(code, tmp_path) & {"tvm", "tvm_ffi"}
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def at_once(with_compiler, tmp_path_factory):
    """Return the folder that two processes find empty at once, and what each of them prints."""
    folder = tmp_path_factory.mktemp("cache") / "new"
    processes = [start(HARD, folder) for _ in range(2)]
    printed = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return folder, printed


@pytest.mark.slow
def test_processes_that_compile_at_once_agree(at_once):
    folder, printed = at_once
    assert len({plan for plan, _ in printed}) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.slow
def test_a_second_process_takes_the_loop_from_the_cache(at_once, tmp_path):
    folder, printed = at_once
    first = printed[0][0]
    assert "True" in {had_tvm for _, had_tvm in printed}
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    before = kept[0].read_bytes()
    second, had_tvm = run(HARD, tmp_path)
    assert (second, had_tvm) == (first, "False")
    assert kept[0].read_bytes() == before


@pytest.mark.slow
def test_a_process_that_finds_a_broken_library_compiles_it_anew(at_once, tmp_path):
    folder, printed = at_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (library,) = tmp_path.iterdir()
    before = library.read_bytes()
    library.write_bytes(before[:4096])  # loading it would end the process
    assert run(HARD, tmp_path) == [printed[0][0], "True"]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


@pytest.fixture(scope="module")
def compiled_once(with_compiler, tmp_path_factory):
    """Return a folder with one compiled loop."""
    folder = tmp_path_factory.mktemp("cache") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.CACHE_VARIABLE, str(folder))
        assert compiled._from_compiler(advance) is not None
    return folder


@pytest.fixture
def kept(compiled_once, tmp_path, monkeypatch):
    """Return a library in a cache folder of its own, and look for loops there."""
    shutil.copytree(compiled_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv(compiled.CACHE_VARIABLE, str(tmp_path))
    (library,) = tmp_path.iterdir()
    assert compiled._from_cache(advance) is not None
    return library


def replace(library, content):
    """Write another file of the name: this process may still have the old one in its memory."""
    library.unlink()
    library.write_bytes(content)


@pytest.mark.parametrize("length", [0, 4096, 9000, -1, None])
def test_a_library_that_was_cut_short_or_changed_is_thrown_away(kept, length):
    content = bytearray(kept.read_bytes()[:length])
    if length is None:
        content[len(content) // 2] ^= 1
    replace(kept, content)
    assert compiled._from_cache(advance) is None
    assert not kept.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are a matter of POSIX")
@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_may_write_is_not_loaded(kept, which, caplog):
    path = kept.parent if which == "folder" else kept
    path.chmod(path.stat().st_mode | 0o022)
    assert compiled._from_cache(advance) is None
    assert f"{path} is passed over" in caplog.text
    path.chmod(0o700)
    assert compiled._from_cache(advance) is not None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are a matter of POSIX")
def test_what_another_user_owns_is_not_loaded(kept, monkeypatch):
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert compiled._from_cache(advance) is None


def test_a_relative_cache_folder_of_the_desktop_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.CACHE_VARIABLE, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert compiled.cache_folder() == tmp_path / ".cache" / "tvm_ext"


def test_the_switch_leaves_the_cache_off(with_compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(compiled.CACHE_VARIABLE, compiled.OFF)
    monkeypatch.setattr(compiled, "_loaded", {})
    assert compiled.loop(advance) is not None
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(compiled.CACHE_VARIABLE, "")
    assert compiled.cache_folder() == tmp_path / "tvm_ext"


def test_a_folder_that_cannot_be_written_is_no_error(with_compiler, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(compiled.CACHE_VARIABLE, str(blocked / "folder"))
    monkeypatch.setattr(compiled, "_loaded", {})
    assert compiled.loop(advance) is not None


@pytest.mark.parametrize("loop", [branch_and_bound, neighborhood, sweep, filling_loop])
def test_a_changed_loop_is_another_library_but_not_for_its_comments(loop, tmp_path, monkeypatch):
    text = Path(loop.__file__).read_text()
    stems = []
    reworded = text.replace("Ints = ", '"""A remark."""\nInts = ', 1)
    assert reworded != text
    for changed in (text, "# A remark\n" + text, reworded, text + "ONE = 1\n"):
        copy = tmp_path / "copy.py"
        copy.write_text(changed)
        seen = {loop.__name__: importlib.util.spec_from_file_location(loop.__name__, copy)}
        monkeypatch.setattr(compiled, "find_spec", lambda name, seen=seen: seen.get(name))
        stems.append(compiled._stem(loop.advance))
    assert stems[0] == stems[1] == stems[2] != stems[3]


ASK = """
import sys, time
from passes.planning.engine import compiled
from passes.planning.planners.first_fit_loop import advance
begin = compiled.is_ready(advance)
while compiled._is_compiling():
    time.sleep(0.1)
print(begin, "tvm" in sys.modules, compiled.is_ready(advance))
"""


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["new", compiled.OFF])
def test_nobody_waits_for_the_compiler(with_compiler, tmp_path, cache):
    folder = cache if cache == compiled.OFF else tmp_path / cache
    assert run(ASK, folder) == ["False False True"]
    if folder != compiled.OFF:
        assert len(list(folder.iterdir())) == len(compiled.LOOPS)
