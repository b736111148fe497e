# SPDX-License-Identifier: Apache-2.0
"""The reference is built from the docstrings, and has all that can be imported from `tvm_ext`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_ext

pytest.importorskip("pdoc", reason="the package pdoc is not there")

ROOT = Path(__file__).parents[2]


def command(page: str) -> list[str]:
    """Return the words of the command that a page gives."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (line,) = re.findall(r"\.venv/bin/pdoc (.*)", text)
    return line.split()


def test_the_reference_has_every_name(tmp_path):
    words = command("README.md")
    assert words == command("CONTRIBUTING.md")
    folder = words[words.index("-o") + 1]
    assert f"{folder}/" in (ROOT / ".gitignore").read_text().splitlines()
    paths = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pdoc", *(str(tmp_path) if w == folder else w for w in words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    page = (tmp_path / "tvm_ext.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<section id="([^".]+)"', page))
    modules = {name for name in tvm_ext.__all__ if isinstance(getattr(tvm_ext, name), type(os))}
    assert set(tvm_ext.__all__) - modules <= shown
    for module in modules:
        assert (tmp_path / "tvm_ext" / f"{module}.html").is_file()
