"""Break our own safety rules one condition at a time, and say which tests notice.

    python tests/tools/mutation_run.py [--only TEXT ...] [--jobs N] [--list]

Each rule and each known fault of the table in ``mutations`` makes faulty versions of a file
(`mutants`). Each is put into a copy of the project, in which the tests that guard the rule run
until the first one fails. A line a version says which test that was. The exit status is 1 when a
rule or a planted fault is noticed by no test at all; a single condition that no test misses is
listed, and is either not needed or not guarded. The whole of it takes an hour or more: take
``--only``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import mutations
from mutants import Mutant, mutants_of

PROJECT = Path(__file__).resolve().parents[2]
COPIED = ("passes", "tvm_ext", "target_hw", "tests", "docs", "benchmarks", "pyproject.toml")
LIMIT_SECONDS = 600
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What the tests said of one faulty version."""

    mutant: Mutant
    noticed_by: str | None  # The first test that failed.

    def __str__(self) -> str:
        """Return the line of the report."""
        mutant = self.mutant
        seen = self.noticed_by or "NOTICED BY NONE"
        return f"{mutant.name}: {mutant.file}:{mutant.line} {mutant.change}: {seen}"


def judged(mutant: Mutant, copy: Path) -> Outcome:
    """Run the tests that guard a rule on a faulty version of it."""
    path = copy / mutant.file
    sound = path.read_text()
    path.write_text(mutant.source)
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *mutant.tests], cwd=copy, capture_output=True, text=True,
            timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(mutant, "it never ends")
    finally:
        path.write_text(sound)
    if done.returncode == 0:
        return Outcome(mutant, None)
    found = FAILED.search(done.stdout)
    if found is None:
        raise RuntimeError(f"pytest could not run {mutant.tests}:\n{done.stdout}{done.stderr}")
    return Outcome(mutant, found.group(1))


def run(mutants: Sequence[Mutant], jobs: int) -> list[Outcome]:
    """Judge all, each in a copy of the project that one job has to itself."""
    copies: Queue[Path] = Queue()

    def job(mutant: Mutant) -> Outcome:
        copy = copies.get()
        try:
            outcome = judged(mutant, copy)
        finally:
            copies.put(copy)
        print(outcome, flush=True)
        return outcome

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(copy_of_project(Path(folder) / str(number) / PROJECT.name))
        return list(pool.map(job, mutants))


def copy_of_project(copy: Path) -> Path:
    """Copy what tests need, with the data beside it where there is some."""
    copy.mkdir(parents=True)
    for name in COPIED:
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    shared = PROJECT.parent / "shared"
    if shared.is_dir():
        (copy.parent / "shared").symlink_to(shared)
    return copy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="rules whose name has such a text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the faulty versions alone")
    options = parser.parse_args(arguments)
    asked = [one for one in mutations.ALL if any(text in one.name for text in options.only)]
    mutants = [mutant for one in asked for mutant in mutants_of(PROJECT, one)]
    if options.list:
        print(*(f"{m.name}: {m.file}:{m.line} {m.change}" for m in mutants), sep="\n")
        return 0
    outcomes = run(mutants, options.jobs)
    noticed = {outcome.mutant.name for outcome in outcomes if outcome.noticed_by}
    survivors = [outcome for outcome in outcomes if not outcome.noticed_by]
    unguarded = [one.name for one in asked if one.name not in noticed]
    print(f"\n{len(outcomes)} faulty versions, {len(survivors)} noticed by no test")
    print(*survivors, sep="\n")
    print(f"{len(asked)} rules and faults, noticed by no test: {', '.join(unguarded) or 'none'}")
    return 1 if unguarded else 0


if __name__ == "__main__":
    sys.exit(main())
