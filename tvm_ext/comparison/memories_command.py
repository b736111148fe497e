# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --memories``: what moves over each bus, by who chooses the memories."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from passes.planning import Budget, MemoriesProblem, Status, check, solve
from passes.planning.memories import greedy
from tvm_ext.commands.command_options import write_json
from tvm_ext.commands.memories_option import add_memories, read_memories
from tvm_ext.reading.programs import problems_of
from tvm_ext.text import Table

SECONDS = 10.0  # Time for each plan


@dataclass(frozen=True)
class Way:
    """One way to choose the memories of a function's tensors."""

    function: str
    name: str
    moved: Mapping[str, int] | None  # Bytes by memory; None where the way finds no place for all
    note: str = ""  # What is known of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    add_memories(parser, moves=False)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is 0. Raises ValueError on bad input."""
    memories = read_memories(arguments.memories)
    found = [
        (problem, ways(problem, [*memories]))
        for problem in problems_of(arguments.program, memories, arguments.target)
    ]
    write_json(arguments.json, [asdict(way) for _, rows in found for way in rows])
    for problem, rows in found:
        print("\n".join(_table(problem, rows, [*memories]).text()))
    return 0


def ways(problem: MemoriesProblem, words: Sequence[str]) -> list[Way]:
    """Return what moves if everything is slow, by ExecuTorch's rule, by our plans, at least."""
    slowest = {b.name: max(problem.allowed(b)) for b in problem.buffers}
    found = [Way(problem.name, "all in the slowest", _moved(problem, slowest, words))]
    by_rule = greedy(problem)
    at = {name: problem.memory_index[memory] for name, (memory, _) in (by_rule or {}).items()}
    moved = _moved(problem, at, words) if by_rule is not None else None
    found.append(Way(problem.name, "greedy, as ExecuTorch", moved))
    for name, moves in (("ours", False), ("ours, tensors move", True)):
        plan = solve(problem, budget=Budget(1 << 60, SECONDS), moves=moves)
        if plan.fits:
            check(problem, plan)
        moved = dict(zip(words, (plan.moved[m.name] for m in problem.memories), strict=True))
        bound = dict(zip(words, reversed(plan.bound), strict=True))
        note = "least (proven)" if plan.status is Status.OPTIMAL else plan.status.value
        note += f", {len(plan.copies)} copies" if plan.copies else ""
        note = note if plan.fits else "does not fit"
        found.append(Way(problem.name, name, moved if plan.fits else None, note))
        found.append(Way(problem.name, f"  no plan is below{', moves' * moves}", bound))
    return found


def _moved(
    problem: MemoriesProblem, chosen: Mapping[str, int], words: Sequence[str]
) -> dict[str, int]:
    moved = dict.fromkeys(words, 0)
    for buffer in problem.buffers:
        moved[words[chosen[buffer.name]]] += problem.cost(buffer, chosen[buffer.name])
    return moved


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
