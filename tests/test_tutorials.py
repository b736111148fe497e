# SPDX-License-Identifier: Apache-2.0
"""The tutorials run as they stand, and what they show is what a reader gets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
TUTORIALS = TESTS.parent / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def notebook(path: Path) -> Any:
    """Read a notebook."""
    import nbformat  # Importing it takes seconds, in every worker.

    return nbformat.read(path, as_version=4)


def printed(cell: Any) -> str:
    """Join the text that a cell printed or showed; what it wrote to stderr stays out."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text if output.name == "stdout" else "")
        elif output.output_type in ("display_data", "execute_result"):
            parts.append(output.data.get("text/plain", ""))
    return "".join(parts)


def test_there_are_tutorials():
    assert NOTEBOOKS


FORGET = f"""
%reset -f
def forget():
    import gc
    import sys
    sys.path.insert(0, {str(TESTS)!r})
    import llvm_level
    import quick_stacks
    sys.path.remove({str(TESTS)!r})
    quick_stacks.install()
    llvm_level.set_level(llvm_level.DEFAULT, for_all=True)
    if "passes.planning.planner" in sys.modules:
        planners = sys.modules["passes.planning.planner"]._PLANNERS
        for name, each in list(planners.items()):
            if each.args[1].__module__ == "__main__":
                del planners[name]
    from passes.planning.planners import relocation as improve
    improve.FIRST_WORK = 0
    gc.freeze()
forget()
del forget
"""
"""What is run before a notebook: names and planners of the one before are forgotten.

What is parsed and built is as in other tests, and the search for cheap plans runs compiled from the
first problem on. A notebook in a process of its own does neither. What is there by then lives to
the end, and the next one need not look through it for garbage.
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A folder to run notebooks in: a reader's need not be that of the notebook."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(TESTS.parent), prepend=os.pathsep)
    yield tmp_path_factory.mktemp("reader")
    patch.undo()


@pytest.fixture(scope="session")
def kernel(folder: Path) -> Iterator[Any]:
    """Start one process for all notebooks of a run: most of what a short one takes are imports."""
    from jupyter_client.manager import KernelManager

    # Sockets in a folder: another process may take a free port before the kernel binds it. The
    # name of such a socket has at most 107 characters, so the folder is not that of the tests.
    with TemporaryDirectory() as sockets:
        manager = KernelManager(transport="ipc", ip=f"{sockets}/kernel")
        manager.start_kernel(cwd=str(folder))
        yield manager
        manager.shutdown_kernel(now=True)


def check_outputs(
    path: Path, folder: Path, first: Sequence[Any] = (), but: str = "", **client: Any
) -> None:
    """Run a notebook behind some other cells, and compare what it prints with what is stored.

    Cells with the tag `but` are left out.
    """
    from nbclient import NotebookClient

    stored, fresh = notebook(path), notebook(path)
    for each in (stored, fresh):
        each.cells = [cell for cell in each.cells if but not in cell.metadata.get("tags", [])]
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    fresh.cells[:0] = first
    # A cell that fails raises CellExecutionError, which shows the cell and its traceback.
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(fresh, timeout=120, resources=resources, **client).execute()

    for before, after in zip(stored.cells, fresh.cells[len(first) :], strict=True):
        if after.cell_type == "code" and "varies" not in after.metadata.get("tags", []):
            assert printed(after) == printed(before), (
                f"{path.name}, cell {after.id!r}: the stored output is not what the cell prints; "
                "run the notebook and save it"
            )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs_and_its_stored_outputs_are_current(path: Path, folder: Path, kernel: Any):
    from nbformat.v4 import new_code_cell

    check_outputs(path, folder, [new_code_cell(FORGET)], but="slow", km=kernel)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs_in_a_process_of_its_own(path: Path, folder: Path):
    check_outputs(path, folder, kernel_name="python3")


def test_learners_import_nothing_of_ours_but_the_faces():
    for path in NOTEBOOKS:
        lines = "\n".join(cell.source for cell in notebook(path).cells if cell.cell_type == "code")
        imported = set(re.findall(r"^\s*(?:from|import) +([\w.]+)", lines, re.MULTILINE))
        assert any(name.split(".")[0] == "tvm_ext" for name in imported), path.name
        inside = [name for name in imported if name.startswith("passes") and name.count(".") != 1]
        assert not inside, path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_hold_no_warning_and_no_error(path: Path):
    for cell in notebook(path).cells:
        if cell.cell_type == "code":
            assert cell.execution_count is not None, f"cell {cell.id!r} was never run"
            for output in cell.outputs:
                assert output.output_type != "error", f"cell {cell.id!r}"
                assert output.get("name") != "stderr", f"cell {cell.id!r}"
