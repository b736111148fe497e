# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --memories``: bytes over each bus under several choices of memories."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from passes.planning import Budget, MemoriesProblem, Status, check, solve
from passes.planning.memories import greedy
from tvm_ext.commands.command_options import read_memories
from tvm_ext.comparison import Report
from tvm_ext.reading.programs import problems_of
from tvm_ext.text import Table

SECONDS = 10.0  # Time for each plan


@dataclass(frozen=True)
class Way:
    """One way to choose the memories of a function's tensors."""

    function: str
    name: str
    moved: Mapping[str, int] | None  # Bytes by memory; None where the way finds no place for all
    note: str = ""  # What is proven, and the number of copies


def run(arguments: argparse.Namespace) -> Report:
    """Choose memories in each way; raises ValueError on bad input."""
    memories = read_memories(arguments.memories)
    plain, lines = [], []
    for problem in problems_of(arguments.program, memories, arguments.target):
        found = ways(problem, [*memories])
        plain += [asdict(way) for way in found]
        lines += _table(problem, found, [*memories]).text()
    return Report(plain, lines)


def ways(problem: MemoriesProblem, words: Sequence[str]) -> list[Way]:
    """Return the bytes moved with all tensors slow, by ExecuTorch's rule and by our plans."""

    def moved(chosen: Mapping[str, int]) -> dict[str, int]:
        counted = dict.fromkeys(words, 0)
        for buffer in problem.buffers:
            counted[words[chosen[buffer.name]]] += problem.cost(buffer, chosen[buffer.name])
        return counted

    slowest = {b.name: max(problem.allowed(b)) for b in problem.buffers}
    found = [Way(problem.name, "all in the slowest", moved(slowest))]
    rule = greedy(problem)
    at = {name: problem.memory_index[memory] for name, (memory, _) in (rule or {}).items()}
    by_rule = None if rule is None else moved(at)
    found.append(Way(problem.name, "greedy, as ExecuTorch", by_rule))
    for name, moves in (("ours", False), ("ours, tensors move", True)):
        plan = solve(problem, budget=Budget(1 << 60, SECONDS), moves=moves)
        note, ours = "does not fit", None
        if plan.fits:
            check(problem, plan)
            ours = {
                word: plan.moved[m.name] for word, m in zip(words, problem.memories, strict=True)
            }
            note = "least (proven)" if plan.status is Status.OPTIMAL else plan.status.value
            note += f", {len(plan.copies)} copies" if plan.copies else ""
        found.append(Way(problem.name, name, ours, note))
        bound = dict(zip(words, reversed(plan.bound), strict=True))
        found.append(Way(problem.name, f"  no plan is below{', moves' * moves}", bound))
    return found


def _table(problem: MemoriesProblem, rows: Sequence[Way], words: Sequence[str]) -> Table:
    slow = words[-1]
    best = next((way.moved[slow] for way in rows if way.name == "ours" and way.moved), None)
    lines = [("chosen", *(f"bytes over {word}" for word in words[1:]), "of ours", "")]
    for way in rows:
        if way.moved is None:
            lines.append((way.name, *[""] * (len(words) - 1), "", way.note or "no place for all"))
            continue
        ratio = f"{way.moved[slow] / best:.2f}" if best else ""
        numbers = (f"{way.moved[word]:,}" for word in words[1:])
        lines.append((way.name, *numbers, ratio, way.note))
    return Table(f"{problem}", lines, left=(0, len(words) + 1))
