# SPDX-License-Identifier: Apache-2.0
"""Plain words in the docstrings of the packages: how they begin, and words that they avoid."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("passes", "target_hw", "tvm_ext")

QUESTIONS = re.compile(r"(What|Which|How|Whether|Why|When|Where|Who)\b")
BANNED = re.compile(
    r"\b(behind|told|(?<!there )is none|of which|gives? up on|(is|are|be) let be)\b"
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _is_property(node: ast.AST) -> bool:
    return any("property" in ast.unparse(each) for each in getattr(node, "decorator_list", ()))


def complaints(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each docstring; a property may say whether it holds."""
    for node in ast.walk(tree):
        if not isinstance(node, Documented) or (text := ast.get_docstring(node)) is None:
            continue
        line = node.body[0].lineno
        begin = QUESTIONS.match(text)
        if begin and not (begin[0] == "Whether" and _is_property(node)):
            yield line, f"begins with {begin[0]!r}: write a noun phrase or an imperative"
        for found in BANNED.finditer(" ".join(text.split())):
            yield line, f"says {found[0]!r}"


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_in_plain_words(package):
    faults = [
        f"{path.relative_to(ROOT)}:{line} {fault}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, fault in complaints(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not faults, "\n".join(faults)


def test_faults_of_docstrings_are_found():
    text = (
        'def f():\n    """Whether it\n\n    is\n    none."""\nclass C:\n    """It is behind."""\n'
    )
    assert [line for line, _ in complaints(ast.parse(f'"""What."""\n{text}'))] == [1, 3, 3, 8]
