# SPDX-License-Identifier: Apache-2.0
"""The tutorials run as they stand, and what they show is what a reader gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TUTORIALS = Path(__file__).resolve().parent.parent / "tutorials"
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs_and_its_stored_outputs_are_current(path: Path):
    from nbclient import NotebookClient

    stored = notebook(path)
    fresh = notebook(path)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    # A cell that fails raises CellExecutionError, which shows the cell and its traceback.
    NotebookClient(
        fresh,
        kernel_name="python3",
        timeout=120,
        resources={"metadata": {"path": str(TUTORIALS)}},
    ).execute()

    for before, after in zip(stored.cells, fresh.cells, strict=True):
        if after.cell_type == "code" and "varies" not in after.metadata.get("tags", []):
            assert printed(after) == printed(before), (
                f"{path.name}, cell {after.id!r}: the stored output is not what the cell prints; "
                "run the notebook and save it"
            )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_hold_no_warning_and_no_error(path: Path):
    for cell in notebook(path).cells:
        if cell.cell_type == "code":
            assert cell.execution_count is not None, f"cell {cell.id!r} was never run"
            for output in cell.outputs:
                assert output.output_type != "error", f"cell {cell.id!r}"
                assert output.get("name") != "stderr", f"cell {cell.id!r}"
