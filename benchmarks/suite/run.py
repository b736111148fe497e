# SPDX-License-Identifier: Apache-2.0
"""Run planners on the suite, and write the tables of docs/planners.md.

    python benchmarks/suite/run.py [--planners NAME,...] [--groups NAME,...] [--time-limit S]
                                   [--record] [--write]

Each plan is judged by `check.py`, and what a planner did is kept in ``results.csv``, in the place
of what it did before. ``--record`` puts a plan that is better than the known one into the
instance's file and the index; ``--write`` puts the tables of all that is kept into the page.
Planners that are not installed are named, with what is missing: see `rivals.py`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import import_module, metadata
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

# ruff: noqa: E402 - only then are they found.
import test_libraries  # noqa: F401
from check import INDEX, INSTANCES, Instance, faults, index, live_bytes, load, penalty, value
from marked_lines import with_lines
from rivals import PLANNERS, Answer, missing, problem_of

from passes.planning import Plan, Problem, Status, lower_bound
from passes.planning.documents import write_document
from passes.planning.engine import compiled
from tvm_ext import __version__

PAGE = HERE.parents[1] / "docs" / "planners.md"
RESULTS = HERE / "results.csv"
COSTS, MEMORIES = ("ascend", "costs"), "memories"
FOR_COSTS = ("three_level", "three_level_mirror")
"""Planners that share nothing while all fits, and so say nothing of peaks."""
LARGE, SLOW = 20_000, ("hill climb", "rec_tbl", "lmem")
"""Buffers beyond which some are not asked: they look at all pairs in Python."""

Entries = dict[str, dict[str, str]]


class Run(NamedTuple):
    """What a planner did with an instance; a value of -1 is no plan."""

    planner: str
    instance: str
    seconds: float
    penalty: int
    value: int
    fits: int
    proven: int


def judged(given: Instance, planner: str, name: str, answer: Answer) -> Run:
    """Return what an answer is worth; ValueError if it is wrong."""
    seconds = round(answer.seconds, 3)
    if not answer.offsets:
        return Run(planner, name, seconds, -1, -1, 0, 0)
    for row in given.rows:
        row.offsets, row.memory = answer.offsets[row.name], answer.memory.get(row.name, "")
    capacity = given.memories.get("")  # Of one memory: a plan above it is right, and does not fit
    unlimited = given if len(given.memories) > 1 else replace(given, memories={"": None})
    if wrong := next(faults(unlimited), None):
        raise ValueError(f"{name}: plan of {planner!r} is wrong: {wrong}")
    found = value(given)
    fits = capacity is None or found <= capacity
    proven = answer.proven or (not given.penalties and found == live_bytes(given))
    return Run(planner, name, seconds, penalty(given), found, int(fits), int(proven and fits))


def record(given: Instance, entry: dict[str, str], run: Run, answer: Answer) -> None:
    """Put a plan into an instance's file and its row of the index, if nothing better is known."""
    path, found = INSTANCES / entry["file"], (run.penalty, run.value)
    known = (int(entry["penalty"]), int(entry["value"])) if entry["value"] else None
    if not run.fits or (known is not None and found > known):
        return
    if known is None or found < known:
        content = written(path, given)
        path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)
        entry |= {"penalty": str(run.penalty), "value": str(run.value), "by": run.planner}
        entry["proven"] = ""
    problem = problem_of(given, path)
    bound = lower_bound(problem) if isinstance(problem, Problem) else answer.bound
    bound = run.value if run.proven and not given.penalties else bound
    entry["bound"] = str(max(bound, int(entry["bound"] or 0)))
    if run.proven and not entry["proven"]:
        counted = not given.penalties and live_bytes(given) == run.value
        entry["proven"] = "live bytes" if counted else run.planner


def written(path: Path, given: Instance) -> bytes:
    """Return the content of an instance's file with the offsets of its rows."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    out = io.StringIO(newline="")
    if ".json" in path.name:
        offsets = {row.name: tuple(row.offsets) for row in given.rows}
        write_document(out, text, Plan(offsets, 0, 0, "", Status.FEASIBLE))
        return out.getvalue().encode()
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    for cells, row in zip(table, given.rows, strict=True):
        cells |= {"memory": row.memory} if row.memory else {}
        cells["offset"] = str(row.offsets[0])
    writer = csv.DictWriter(out, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue().encode()


def save(path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows((columns, *rows))


def kept(entries: Entries) -> list[Run]:
    """Return the kept runs of instances that are in the suite."""
    if not RESULTS.is_file():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as stream:
        _, *rows = csv.reader(stream)
    runs = (Run(row[0], row[1], float(row[2]), *map(int, row[3:])) for row in rows)
    return [run for run in runs if run.instance in entries]


# ---------------------------------------------------------------------------------------- tables


def is_best(run: Run, entries: Entries) -> bool:
    """Return whether no better plan is known."""
    entry = entries[run.instance]
    return bool(run.fits) and [run.penalty, run.value] <= [
        *map(int, (entry["penalty"], entry["value"]))
    ]


def shown(planner: str) -> str:
    """Return what a planner is called on the page: ours as in the code."""
    return f"`{planner}`" if planner.islower() and " " not in planner else planner


def sizes(entries: Entries) -> dict[str, int]:
    groups = [entry["group"] for entry in entries.values()]
    return {group: groups.count(group) for group in dict.fromkeys(groups)}


def table(groups: Sequence[str], runs: Sequence[Run], entries: Entries) -> Iterator[list[Run]]:
    """Yield the runs of each planner on some groups."""
    here = [run for run in runs if entries[run.instance]["group"] in groups]
    for planner in dict.fromkeys(run.planner for run in here):
        yield [run for run in here if run.planner == planner]


def peaks_table(runs: Sequence[Run], entries: Entries) -> Iterator[str]:
    """Yield, for each planner and group, the mean of peak over bound, and how many are the best."""
    counts = {g: n for g, n in sizes(entries).items() if g not in (*COSTS, MEMORIES)}
    rows = []
    for mine in table(list(counts), runs, entries):
        cells, found = [], [run for run in mine if run.value >= 0]
        for group, count in counts.items():
            here = [run for run in found if entries[run.instance]["group"] == group]
            ratios = [max(1, r.value) / max(1, int(entries[r.instance]["bound"])) for r in here]
            mean = f"{geometric_mean(ratios):.4f}" if ratios else ""
            cells.append(mean if len(here) in (0, count) else f"{mean} [{len(here)}]")
        best = sum(is_best(run, entries) for run in found)
        rows.append((-best, row(mine, *cells, str(best))))
    yield from header("planner", *(f"{g} ({n})" for g, n in counts.items()), "best", "proven", "s")
    yield from (line for _, line in sorted(rows))


def costs_table(runs: Sequence[Run], entries: Entries) -> Iterator[str]:
    """Yield, for each planner, the penalties of the groups whose sharing costs something."""
    rows, counts = [], sizes(entries)
    for mine in table(COSTS, runs, entries):
        cells, worth = [], []
        for group in COSTS:
            fit = [r for r in mine if r.fits and entries[r.instance]["group"] == group]
            total, best = sum(r.penalty for r in fit), sum(is_best(r, entries) for r in fit)
            cells += [str(len(fit)), f"{total:,}" if len(fit) == counts[group] else "", str(best)]
            worth += [-len(fit), total]
        rows.append((worth, row(mine, *cells)))
    titles = [f"{g} ({counts[g]}): {part}" for g in COSTS for part in ("fit", "penalty", "best")]
    yield from header("planner", *titles, "proven", "s")
    yield from (line for _, line in sorted(rows))


def row(runs: Sequence[Run], *cells: str) -> str:
    """Return a planner's row, which ends with how much it proves, and in which time."""
    proven, seconds = sum(run.proven for run in runs), sum(run.seconds for run in runs)
    return f"| {' | '.join((shown(runs[0].planner), *cells, str(proven), f'{seconds:.1f}'))} |"


def header(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |"
    yield f"| --- | {' | '.join('---:' for _ in cells[1:])} |"


def sentences(runs: Sequence[Run], entries: Entries) -> Iterator[str]:
    """Yield how `best` stands beside others, one by one, and what is proven of the suite."""
    ours = {run.instance: run for run in runs if run.planner == "best"}
    for other in ("OmniMalloc", "MiniMalloc", "HiGHS"):
        theirs = [run for run in runs if run.planner == other and run.instance in ours]
        if not theirs:
            continue
        found = [(ours[run.instance].value, run.value) for run in theirs if run.value >= 0]
        less, more = sum(a < b for a, b in found), sum(a > b for a, b in found)
        yield (
            f"- {other} was asked {len(theirs)} instances, and found no plan in time for "
            f"{len(theirs) - len(found)}. `best` takes fewer bytes in {less} of the others, as "
            f"many in {len(found) - less - more}, more in {more}."
        )
    several = [run for run in ours.values() if entries[run.instance]["group"] == MEMORIES]
    proven, seconds = sum(run.proven for run in several), sum(run.seconds for run in several)
    yield (
        f"- With a fast memory beside a slow one, `best` proves {proven} of {len(several)} plans "
        f"to move the fewest bytes, in {seconds:.1f} s."
    )
    proofs = [entry["proven"] for entry in entries.values() if entry["proven"]]
    yield (
        f"- Of the {len(entries)} known plans {len(proofs)} are proven best: "
        f"{proofs.count('live bytes')} by the bytes that are live at once, the others by a search."
    )


def caption(limit: float) -> str:
    """Say when, with what and where the planners were measured."""
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        facts = []
    names = [line.partition(":")[2].strip() for line in facts if line.startswith("model name")]
    return (
        f"Measured on {datetime.now(timezone.utc).date()} with tvm-ext {__version__}, HiGHS "
        f"{metadata.version('highspy')} and Python {platform.python_version()}, on one thread of "
        f"{os.cpu_count()} of {names[0] if names else platform.machine()}, beside other work, with "
        f"a limit of {limit:g} s a plan."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--planners", default=",".join(PLANNERS), help="default: all")
    parser.add_argument("--groups", help="default: all")
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds a plan")
    parser.add_argument("--record", action="store_true", help="keep better plans and proofs")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/planners.md")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.planners.split(",") if name]
    entries, absent, limit = index(), missing(), arguments.time_limit
    groups = arguments.groups.split(",") if arguments.groups else list(sizes(entries))
    if unknown := {*chosen} - {*PLANNERS} | {*groups} - {*sizes(entries)}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in [name for name in chosen if name in absent]:
        print(f"{name} is missing: {absent[name]}", file=sys.stderr)
    for module in compiled.LOOPS:  # Nobody's time has that in it
        compiled.loop(import_module(module).advance)
    runs = {(run.planner, run.instance): run for run in kept(entries)}
    for name, entry in entries.items():
        group, path = entry["group"], INSTANCES / entry["file"]
        for planner in chosen if group in groups else ():
            given = load(path, entry)
            is_asked = group in COSTS or planner not in FOR_COSTS
            is_asked &= planner not in SLOW or len(given.rows) <= LARGE
            if planner in absent or not is_asked:
                continue
            answer = PLANNERS[planner](given, path, limit)
            if answer is not None:
                runs[planner, name] = run = judged(given, planner, name, answer)
                print(*run, flush=True)
                if arguments.record:
                    record(given, entry, run, answer)
        if group in groups:
            save(RESULTS, Run._fields, runs.values())
            if arguments.record:
                save(INDEX, list(entry), (each.values() for each in entries.values()))
    if arguments.write:
        page, found = PAGE.read_text(encoding="utf-8"), list(runs.values())
        peaks = [*peaks_table(found, entries), "", caption(limit)]
        page = with_lines(page, "peaks", peaks)
        page = with_lines(page, "costs", costs_table(found, entries))
        PAGE.write_text(with_lines(page, "pairs", sentences(found, entries)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
