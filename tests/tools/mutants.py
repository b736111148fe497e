# SPDX-License-Identifier: Apache-2.0
"""Make faulty versions of our own code: one condition of a safety rule dropped, or a fault planted.

A rule is a set of functions that say when something is safe. Each condition in them is dropped in
turn: an operand of ``and`` or ``or``, an early exit, a filter of a comprehension, the whole of an
``all`` or ``any``, the answer itself. A fault is a text that takes the place of another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """Functions that decide whether something is safe, and the tests that guard them."""

    name: str
    file: str  # From the top of the project.
    functions: tuple[str, ...]  # `function` or `Class.method`; all in the file where it is empty.
    tests: tuple[str, ...]  # What pytest is given: files, folders or node ids.


@dataclass(frozen=True)
class Fault:
    """A known class of fault, planted by hand."""

    name: str
    file: str
    before: str  # Stands once in the file.
    after: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """One faulty version of one file."""

    name: str  # Of the rule or fault.
    file: str
    line: int
    change: str  # What was done, in words.
    source: str  # The whole file, changed.
    tests: tuple[str, ...]

    def __str__(self) -> str:
        """Return what it is, in a line."""
        return f"{self.name}: {self.file}:{self.line} {self.change}"


def mutants_of(root: Path, one: Rule | Fault) -> list[Mutant]:
    """Return the faulty versions that a rule or a fault stands for, in the order of their lines.

    Raises
    ------
    ValueError
        When the file does not have the functions, or the text not exactly once.
    """
    source = (root / one.file).read_text()
    if isinstance(one, Fault):
        return [_planted(one, source)]
    edits = {
        (old.lineno, old.col_offset, old.end_lineno, old.end_col_offset, new): (old, new, change)
        for node in _functions(one, ast.parse(source))
        for old, new, change in _edits(node)
    }
    return [
        Mutant(one.name, one.file, old.lineno, change, _replaced(source, old, new), one.tests)
        for _, (old, new, change) in sorted(edits.items(), key=lambda edit: edit[0][:2])
    ]


def _planted(fault: Fault, source: str) -> Mutant:
    if source.count(fault.before) != 1:
        raise ValueError(
            f"{fault.file}: the text of fault {fault.name!r} stands there "
            f"{source.count(fault.before)} times: {fault.before!r}"
        )
    line = source[: source.index(fault.before)].count("\n") + 1
    changed = source.replace(fault.before, fault.after)
    return Mutant(fault.name, fault.file, line, "planted", changed, fault.tests)


def _functions(rule: Rule, tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the functions of a rule."""
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found.update((f"{node.name}.{method.name}", method) for method in methods)
    missing = [name for name in rule.functions if name not in found]
    if missing:
        raise ValueError(f"{rule.file} has no {', '.join(missing)}, which rule {rule.name!r} names")
    yield from (found[name] for name in rule.functions) if rule.functions else (tree,)


Edit = tuple[ast.expr, str, str]
"""The expression that is replaced, by what, and what that means in words."""


def _edits(function: ast.AST) -> Iterator[Edit]:
    """Yield each way to drop one condition."""
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            neutral = "True" if isinstance(node.op, ast.And) else "False"
            for operand in node.values:
                yield operand, neutral, f"without '{_text(operand)}'"
        elif isinstance(node, ast.If) and _leaves(node) and not _has_parts(node.test):
            yield node.test, "False", f"never leaves at 'if {_text(node.test)}'"
        elif isinstance(node, ast.comprehension):
            for condition in node.ifs:
                yield condition, "True", f"for all, not 'if {_text(condition)}'"
        elif isinstance(node, ast.Call) and _name(node) in ("all", "any"):
            yield node, str(_name(node) == "all"), f"without '{_text(node)}'"
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Compare):
            yield node.value, "True", f"always '{_text(node.value)}'"


def _leaves(node: ast.If) -> bool:
    """Whether an `if` does nothing but leave what it stands in."""
    exits = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    return not node.orelse and isinstance(node.body[-1], exits)


def _has_parts(test: ast.expr, negated: bool = False) -> bool:
    """Whether an exit is taken for several reasons, each of which is dropped on its own."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _has_parts(test.operand, not negated)
    if isinstance(test, ast.Call):
        return _name(test) == ("all" if negated else "any")
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if negated else ast.Or)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _replaced(source: str, old: ast.expr, new: str) -> str:
    """Return the source with one expression replaced; positions of the syntax tree are bytes."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    assert old.end_lineno is not None
    assert old.end_col_offset is not None
    begin = starts[old.lineno - 1] + old.col_offset
    end = starts[old.end_lineno - 1] + old.end_col_offset
    text = source.encode()
    return (text[:begin] + f"({new})".encode() + text[end:]).decode()
