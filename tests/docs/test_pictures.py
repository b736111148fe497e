# SPDX-License-Identifier: Apache-2.0
"""The script that draws the pictures of the pages."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_picture_of_savings_shows_the_bytes_of_its_table(tmp_path, monkeypatch, capsys):
    name, script = "squeezenet_stock_and_best.svg", ROOT / "docs" / "make_pictures.py"
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), name, "--folder", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    (row,) = re.findall(r"^\| squeezenet \|.*", (ROOT / "docs" / "savings.md").read_text(), re.M)
    assert (
        re.findall(r"([\d,]+) bytes", capsys.readouterr().out) == re.findall(r"[\d,]{7,}", row)[:2]
    )
    assert (tmp_path / name).read_text().startswith("<svg")
