# SPDX-License-Identifier: Apache-2.0
"""The public suite: its plans are right, and its checker finds every kind of fault."""

from __future__ import annotations

import ast
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

SUITE = Path(__file__).parents[2] / "benchmarks" / "suite"
sys.path.append(str(SUITE))

import check  # noqa: E402

ENTRIES = check.index()
GROUPS = {entry["group"]: name for name, entry in reversed(ENTRIES.items())}
SAMPLE = sorted({*GROUPS.values(), *list(ENTRIES)[::8]} - {"idealloc_S_1", "idealloc_Y_1"})


def problems_with(name):
    entry = ENTRIES[name]
    loaded = check.load(check.INSTANCES / entry["file"], entry)
    return [*check.faults(loaded), *check.wrong_claims(loaded, entry)]


def test_a_sample_of_the_known_plans_is_right():
    assert {name: wrong for name in SAMPLE if (wrong := problems_with(name))} == {}


@pytest.mark.slow
def test_all_known_plans_are_right():
    assert {name: wrong for name in ENTRIES if (wrong := problems_with(name))} == {}


def test_the_suite_is_as_large_as_it_says():
    files = [path for path in SUITE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(ENTRIES) >= 200
    assert sum(path.stat().st_size for path in files) <= 3 << 20
    assert {path.name for path in check.INSTANCES.iterdir()} == {
        entry["file"] for entry in ENTRIES.values()
    }
    assert all(entry["source"] and entry["licence"] and entry["by"] for entry in ENTRIES.values())


def test_the_checker_needs_python_alone():
    tree = ast.parse((SUITE / "check.py").read_text(encoding="utf-8"))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert modules <= set(sys.stdlib_module_names)


@st.composite
def placed(draw):
    """Draw buffers on one or two clocks with offsets, a few in place, apart or in two slots."""
    clocks, rows = draw(st.integers(1, 2)), []
    for number in range(draw(st.integers(2, 5))):
        begin = draw(st.lists(st.integers(0, 3), min_size=clocks, max_size=clocks))
        end = [at + draw(st.integers(1, 3)) for at in begin]
        slots = draw(st.sampled_from([1, 1, 2]))
        row = check.Row(f"b{number}", draw(st.integers(0, 3)), [(tuple(begin), tuple(end))])
        row.slots, row.alignment = slots, draw(st.sampled_from([1, 1, 2]))
        row.offsets = [draw(st.integers(0, 6)) for _ in range(slots)]
        rows.append(row)
    names = [[a.name, b.name] for a, b in combinations(rows, 2)]
    pick = st.lists(st.sampled_from(names), max_size=2)
    pairs = draw(pick) if draw(st.booleans()) else []
    apart = [pair for pair in draw(pick) if pair not in pairs] if pairs else []
    reserved = [[0, 1]] if draw(st.booleans()) else []
    return check.Instance(rows, {"": 8}, 1, reserved, pairs, apart)


def is_wrong(given):
    """Whether some byte has two owners, or one that it may not have: byte by byte."""
    in_place = {frozenset(pair) for pair in given.in_place}
    blocks = [(row, slot, at) for row in given.rows for slot, at in enumerate(row.offsets)]
    for row, _, at in blocks:
        taken = set(range(at, at + row.size))
        if at % row.alignment or at + row.size > 8:
            return True
        if taken & {byte for low, high in given.reserved for byte in range(low, high)}:
            return True
    for (one, slot, at), (two, other, to) in combinations(blocks, 2):
        if not set(range(at, at + one.size)) & set(range(to, to + two.size)):
            continue
        pair = frozenset((one.name, two.name))
        if one is two or [one.name, two.name] in given.separations:
            return True
        (a, b), (c, d) = one.lives[0], two.lives[0]
        ends = all(x <= y for x, y in zip(b, c, strict=True))
        ends |= all(x <= y for x, y in zip(d, a, strict=True))
        same = (slot, at) == (other, to) and one.slots == two.slots
        if not ends and not (pair in in_place and same):
            return True
    return False


@given(placed())
def test_the_checker_finds_exactly_what_is_wrong(given):
    assert bool(list(check.faults(given))) == is_wrong(given)
