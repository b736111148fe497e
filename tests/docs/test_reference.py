# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation has every page, and everything that can be imported."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import tvm_ext

ROOT = Path(__file__).parents[2]


def test_every_name_has_a_text():
    values = {name: getattr(tvm_ext, name) for name in tvm_ext.__all__}
    assert [name for name, value in values.items() if not inspect.getdoc(value)] == []


def test_every_page_and_notebook_is_in_the_navigation():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w./-]+\.(?:md|ipynb))$", site, re.M)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    notebooks = {f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb")}
    beside = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert sorted(listed) == sorted(pages | notebooks | beside)
