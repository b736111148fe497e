# SPDX-License-Identifier: Apache-2.0
"""Peaks over the corpus, held against the allocations that TVM's own StorageRewrite leaves."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import tvm
import tvm_ffi
from corpus import Entry
from tvm import tirx

from passes.planning import Problem, lower_bound, solve, verify
from passes.prim_func.problems import FunctionProblems, ProblemOptions, find_problems
from target_hw.storage_scope import parse_storage_scope

PARTS = [slice(None, None, 3), pytest.param(slice(None), marks=pytest.mark.slow)]
"""Every third function, and all of them."""

UNITS = (1, 64)
"""Alignments in bytes to compare at: without any padding, and with what TVM's run time gives."""


STOCK_IS_WRONG = {
    "aliases[llvm,view]": "it puts a transposed copy in place, because it is read by another name",
}
"""Where StorageRewrite takes less memory than there can be."""


def problems_of(entry: Entry) -> FunctionProblems:
    """Read off what is planned as places in allocations, which is what the stock pass does."""
    (func,) = entry.mod.functions.values()
    return find_problems(func, ProblemOptions(addressed=False))


def at_alignment(problem: Problem, unit: int) -> Problem:
    return replace(problem, memory=replace(problem.memory, alignment=unit))


def stock(entry: Entry) -> tvm.IRModule:
    with tvm.transform.PassContext(config=dict(entry.config)):
        return tirx.transform.StorageRewrite()(entry.mod)


def allocations(mod: tvm.IRModule) -> list[tuple[str, str, int]]:
    """Return name, scope and bytes of each allocation of constant size that is no register."""
    found = []

    def note(op: tirx.AllocBuffer) -> None:
        ty = op.buffer.ty
        if not all(isinstance(extent, tirx.IntImm) for extent in ty.shape):
            return
        dtype, scope = ty.dtype.dtype, parse_storage_scope(str(ty.storage_scope))
        nbits = math.prod(int(extent) for extent in ty.shape) * dtype.bits * dtype.lanes
        if nbits <= 0 or (not scope.tag and (nbits <= 32 or scope.is_register_like)):
            return
        found.append((op.buffer.name, str(scope), -(-nbits // 8)))

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
    return found


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def stock_bytes(entry: Entry, unit: int) -> Counter[str]:
    """Return the bytes of the stock pass's allocations, each rounded up to a unit, by scope."""
    total: Counter[str] = Counter()
    for _, scope, nbytes in allocations(stock(entry)):
        total[scope] += rounded(nbytes, unit)
    return total


def planned_bytes(entry: Entry, unit: int) -> Counter[str]:
    """Return the verified peaks of `best`, each rounded up to a unit, by scope."""
    total: Counter[str] = Counter()
    for attached in problems_of(entry).problems:
        problem = at_alignment(attached.problem, unit)
        plan = solve(problem, "best")
        assert verify(problem, plan) == (), entry.name
        total[problem.memory.name] += rounded(plan.peak, unit)
    return total


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("unit", UNITS)
def test_no_function_takes_more_than_by_the_stock_pass(corpus: list[Entry], unit: int, part: slice):
    """Only where the stock pass is wrong does it take less."""
    entries, above = corpus[part], {}
    num_planned = 0
    for entry in entries:
        planned, allocated = planned_bytes(entry, unit), stock_bytes(entry, unit)
        num_planned += bool(planned)
        if any(nbytes > allocated[scope] for scope, nbytes in planned.items()):
            above[entry.name] = dict(planned), dict(allocated)
    assert num_planned > len(entries) // 3
    expected = [entry.name for entry in entries if entry.name in STOCK_IS_WRONG]
    assert list(above) == expected, above


@pytest.mark.parametrize("part", PARTS)
def test_nearly_all_functions_are_at_the_lower_bound(corpus: list[Entry], part: slice):
    at_bound = num_planned = 0
    for entry in corpus[part]:
        problems = [attached.problem for attached in problems_of(entry).problems]
        num_planned += bool(problems)
        at_bound += bool(problems) and all(
            solve(problem, "best").peak == lower_bound(problem) for problem in problems
        )
    print(f"{at_bound} of {num_planned} functions are at the lower bound")
    assert at_bound >= 0.95 * num_planned > 0


@pytest.mark.parametrize("part", PARTS)
def test_both_sides_count_the_same_allocations(corpus: list[Entry], part: slice):
    """What is planned and what is left, by a plain walk."""
    for entry in corpus[part]:
        found = problems_of(entry)
        planned = Counter(
            (allocation.statement.buffer.name, attached.problem.memory.name, buffer.size)
            for attached in found.problems
            for buffer, allocation in zip(
                attached.problem.buffers, attached.allocations.values(), strict=True
            )
        )
        there = Counter(allocations(entry.mod))
        unused = [note for note in found.left_alone if note.text == "nothing uses it"]
        assert not planned - there, entry.name
        assert (there - planned).total() == len(unused), entry.name
