# SPDX-License-Identifier: Apache-2.0
"""``--memories``: the memories of a chip as a user writes them, and ``plan`` over all of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, check, solve
from passes.planning.files import read_memories_problem, write_memories_plan
from passes.planning.memories import does_not_fit_in_memories
from target_hw.memory import MemoryScope
from tvm_ext.commands.command_options import write_json
from tvm_ext.text import parse_bytes

PREFIX = "global."  # Before a memory's name in TVM's storage scopes


def add_memories(parser: argparse.ArgumentParser, moves: bool = True) -> None:
    """Add ``--memories``, and ``--moves`` where that is asked for."""
    parser.add_argument(
        "--memories",
        metavar="NAME[:BYTES[:ALIGNMENT]],...",
        help="choose among these memories, the fastest first, so that the fewest bytes move over "
        "the bus of the last one: sram:1MiB,dram; one without bytes has no end",
    )
    if moves:
        parser.add_argument(
            "--moves",
            action="store_true",
            help="with --memories: let a buffer leave a fast memory and come back before a read",
        )


def read_memories(text: str) -> dict[str, MemoryScope]:
    """Return the memories that a user lists, by the user's word, the fastest first.

    Raises ValueError when there are fewer than two, or an entry is none.
    """
    found: dict[str, MemoryScope] = {}
    for entry in text.split(","):
        word, *numbers = (part.strip() for part in entry.split(":"))
        if not word or len(numbers) > 2:
            raise ValueError(f"--memories: expected NAME[:BYTES[:ALIGNMENT]], got {entry!r}")
        if word in found:
            raise ValueError(f"--memories: {word!r} is given twice")
        capacity, alignment = (*(parse_bytes(n) if n else None for n in numbers), None, None)[:2]
        scope = word if word == "global" or "." in word else PREFIX + word
        found[word] = MemoryScope(scope, capacity, alignment or 1)
    if len(found) < 2:
        raise ValueError(f"--memories: needs two memories or more, got {text!r}")
    return found


def check_no_memories(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that mean something with ``--memories`` only."""
    if getattr(arguments, "moves", False) and not arguments.memories:
        raise ValueError("--moves needs --memories")


def check_alone(arguments: argparse.Namespace, *options: str) -> None:
    """Raise ValueError for options that mean nothing with ``--memories``."""
    for option in options:
        if getattr(arguments, option) not in (None, 1, False, ""):
            raise ValueError(f"--{option} means nothing with --memories")


def run_table(arguments: argparse.Namespace) -> int:
    """Plan a table over several memories; return 0 if the plan fits, 1 if not."""
    check_alone(arguments, "planners", "capacity", "alignment")
    memories = read_memories(arguments.memories)
    words = {word: scope.name for word, scope in memories.items()}
    start = time.monotonic()
    with open(arguments.table, encoding="utf-8-sig", newline="") as stream:
        problem = read_memories_problem(stream, arguments.table, [*memories.values()], words)
        stream.seek(0)
        tells_touches = "touches" in stream.readline().lower()
    left = max(0.0, arguments.time_limit - 3 * (time.monotonic() - start))
    plan = solve(problem, budget=Budget(1 << 60, left), moves=arguments.moves)
    if plan.fits:
        check(problem, plan)
        if arguments.output is not None:
            with open(arguments.output, "w", encoding="utf-8", newline="") as stream:
                write_memories_plan(stream, problem, plan, words)
    write_json(arguments.json, plain(problem, plan, words))
    for line in report(problem, plan, [*words]):
        print(line)
    if arguments.moves and not tells_touches:
        print(
            "the table has no column touches: all reads but the last are taken to follow the write"
        )
    took = time.monotonic() - start
    if took > arguments.time_limit:
        print(f"took {took:.1f} s, above the limit of {arguments.time_limit:g} s", file=sys.stderr)
    return 0 if plan.fits else 1


def plain(problem: MemoriesProblem, plan: MemoriesPlan, words: dict[str, str]) -> dict[str, object]:
    """Return a plan as plain data."""
    called = {scope: word for word, scope in words.items()}
    return {
        "problem": problem.name,
        "moved": {called[name]: nbytes for name, nbytes in plan.moved.items()},
        "bound": dict(zip(reversed(list(words)), plan.bound, strict=True)),
        "status": plan.status.value,
        "peaks": {called[name]: peak for name, peak in plan.peaks.items()},
        "memory": {name: called[scope] for name, scope in plan.memory.items()},
        "offsets": {name: list(offsets) for name, offsets in plan.offsets.items()},
        "stays": {
            name: [[called[stay.memory], stay.offsets[0], *stay.live] for stay in stays]
            for name, stays in plan.stays.items()
        },
        "copies": [
            [c.buffer, called[c.source], called[c.target], c.size, c.begin, c.end]
            for c in plan.copies
        ],
    }


def report(problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]) -> list[str]:
    """Return lines that say what moves, what is proven, and what each memory holds."""
    if not plan.fits:
        called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
        return [does_not_fit_in_memories(problem, plan, called)]
    moved, lines = problem.objective(plan.moved), []
    for at, word in enumerate(reversed(words[1:])):
        is_least = moved[: at + 1] == plan.bound[: at + 1]
        proof = "least (proven)" if is_least else "a better plan may exist"
        lines.append(
            f"{len(problem.buffers)} buffers: {moved[at]} bytes move over {word}, lower bound "
            f"{plan.bound[at]}, {proof}"
        )
    if moved[-1]:
        lines.append(f"{moved[-1]} bytes move over {words[0]}")
    for word, memory in zip(words, problem.memories, strict=True):
        count = sum(scope == memory.name for scope in plan.memory.values())
        room = "" if memory.capacity is None else f" of {memory.capacity}"
        lines.append(f"{word}: {count} buffers, peak {plan.peaks[memory.name]}{room} bytes")
    if plan.stays:
        nbytes = sum(copy.size for copy in plan.copies)
        lines.append(
            f"{len(plan.stays)} buffers move, in {len(plan.copies)} copies of {nbytes} bytes"
        )
    return lines
