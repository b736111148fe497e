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

pdoc = pytest.importorskip("pdoc", reason="the package pdoc is not there")

ROOT = Path(__file__).parents[2]


def command(page: str) -> list[str]:
    """Return the words of the command that a page gives."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (line,) = re.findall(r"\.venv/bin/pdoc (.*)", text)
    return line.split()


def folder_of(words: list[str]) -> str:
    return words[words.index("-o") + 1]


MODULES = {name for name in tvm_ext.__all__ if isinstance(getattr(tvm_ext, name), type(os))}


def test_the_commands_are_the_same_and_what_they_make_is_not_kept():
    words = command("README.md")
    assert words == command("CONTRIBUTING.md")
    assert f"{folder_of(words)}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_name_is_a_member_with_a_text():
    members = {**pdoc.doc.Module(tvm_ext).members}
    names = set(tvm_ext.__all__) - MODULES
    assert names <= set(members)
    assert [name for name in sorted(names) if not members[name].docstring] == []


@pytest.mark.slow
def test_the_whole_reference_is_built(tmp_path):
    words = command("README.md")
    folder = folder_of(words)
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
    assert set(tvm_ext.__all__) - MODULES <= set(re.findall(r'<section id="([^".]+)"', page))
    for module in MODULES:
        assert (tmp_path / "tvm_ext" / f"{module}.html").is_file()
