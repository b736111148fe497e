# SPDX-License-Identifier: Apache-2.0
"""Programs of the page that can be sent to TVM's authors: each shows its fault."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "known-faults.md"
PROGRAMS = {
    f"{section.partition(chr(10))[0]} {number}": program
    for section in PAGE.read_text().split("\n### ")
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    if '"mended"' in program
}
"""By the title of their section, and their number in it."""


@pytest.mark.parametrize("title", PROGRAMS)
def test_the_fault_is_there(title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if "torch.export" in PROGRAMS[title]:
        pytest.importorskip("torch", reason="the package torch is not there")
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[title])
    runpy.run_path(str(path))
    assert capsys.readouterr().out.split() == ["wrong"], "TVM has mended this: take it off the page"


def test_the_page_has_them():
    assert len(PROGRAMS) == 14
