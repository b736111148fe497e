# SPDX-License-Identifier: Apache-2.0
"""Plain words in the packages: how docstrings and comments begin, and words that they avoid."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

QUESTIONS = re.compile(r"(What|Which|How|Whether|Why|When|Where|Who)\b")
IN_COMMENTS = re.compile(r"# (What|Which|How|Why|Who)\b")
"""A comment may say whether a field holds, and where or when a rule does."""
OLD_WORDS = re.compile(r"\b(behind|told)\b")
BANNED = re.compile(r"\b(behind|told|(?<!there )is none|of which|(is|are|be) let be)\b")


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each docstring, and whether it is that of an attribute."""
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
    for at, each in enumerate(getattr(node, "body", ())):
        value = each.value if isinstance(each, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield each.lineno, value.value, at > 0 or "property" in decorators
    # No expression has a docstring, and these are most of a tree.
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, part, ()):
            yield from _docstrings(each)


def complaints(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each docstring and comment of a file."""
    for line, text, is_attribute in sorted(_docstrings(ast.parse(source))):
        begin = QUESTIONS.match(text)
        if begin and not (begin[0] == "Whether" and is_attribute):
            yield line, f"begins with {begin[0]!r}: write a noun phrase or an imperative"
        for found in BANNED.finditer(" ".join(text.split())):
            yield line, f"says {found[0]!r}"
    if not IN_COMMENTS.search(source) and not OLD_WORDS.search(source):
        return  # To take a file apart takes longer than all else.
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if begin := IN_COMMENTS.match(token.string):
                yield token.start[0], f"a comment begins with {begin[1]!r}"
            for found in OLD_WORDS.finditer(token.string):
                yield token.start[0], f"a comment says {found[0]!r}"


@pytest.mark.parametrize("package", ["passes", "target_hw", "tvm_ext"])
def test_docstrings_and_comments_are_in_plain_words(package):
    faults = [
        f"{path.relative_to(ROOT)}:{line} {fault}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, fault in complaints(path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n".join(faults)


TEXT = '''"""What."""
def f():  # Where it is, "# What" is a text.
    """Whether it
    is none; there is none."""
B = 1  # How many
"""Whether it is behind."""
# We were told.'''


def test_faults_of_docstrings_and_comments_are_found():
    assert [line for line, _ in complaints(TEXT)] == [1, 3, 3, 6, 5, 7]
