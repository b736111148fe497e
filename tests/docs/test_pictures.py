# SPDX-License-Identifier: Apache-2.0
"""The script that draws the pictures of the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_picture_of_savings_shows_the_bytes_of_its_table(tmp_path):
    name = "squeezenet_stock_and_best.svg"
    command = [sys.executable, str(ROOT / "docs" / "make_pictures.py"), name]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], check=True, capture_output=True, text=True
    )
    (row,) = re.findall(r"^\| squeezenet \|.*", (ROOT / "docs" / "savings.md").read_text(), re.M)
    assert re.findall(r"([\d,]+) bytes", done.stdout) == re.findall(r"[\d,]{7,}", row)[:2]
    assert (tmp_path / name).read_text().startswith("<svg")
