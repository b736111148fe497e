# SPDX-License-Identifier: Apache-2.0
"""Programs that can be sent to TVM's authors: each shows its fault, and docs/known-faults.md it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = sorted((DOCS / "faults").glob("*.py"))
ON_SOME_CPUS = "wrapped_index"
"""The program whose fault depends on what LLVM knows of the CPU."""


@pytest.mark.parametrize(
    "path", [p for p in PROGRAMS if p.stem != ON_SOME_CPUS], ids=lambda p: p.stem
)
def test_the_fault_is_there(path: Path, capsys: pytest.CaptureFixture[str]):
    if "torch.export" in path.read_text():
        pytest.importorskip("torch", reason="the package torch is not there")
    runpy.run_path(str(path))
    assert capsys.readouterr().out.split() == ["wrong"], "TVM has mended this: take it off the page"


def test_the_page_leads_to_each():
    page = (DOCS / "known-faults.md").read_text()
    assert len(PROGRAMS) == 18
    assert [p.name for p in PROGRAMS if f"](faults/{p.name})" not in page] == []
