# SPDX-License-Identifier: Apache-2.0
"""Break our own safety rules one condition at a time, and say which tests notice.

    python tests/tools/mutation_run.py [--only TEXT ...] [--first] [--jobs N] [--list]

Each rule and each known fault of the table in ``mutations`` makes faulty versions of a file
(`mutants`). Each is put into a copy of the project, in which the tests that guard the rule run
until the first one fails. A line a version says which test that was. The exit status is 1 when a
rule or a planted fault is noticed by no test at all; a single condition that no test misses is
listed, and is either not needed or not guarded. The whole of it takes hours: take ``--only``, or
``--first``, which goes on to the next rule once a version of one was noticed. A process for each
version is forked from one that has imported TVM already.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import mutations
import pytest
from hypothesis import Phase, settings
from mutants import Mutant, mutants_of

PROJECT = Path(__file__).resolve().parents[2]
COPIED = ("passes", "tvm_ext", "target_hw", "tests", "docs", "benchmarks", "pyproject.toml")
LIMIT_SECONDS = 600
_PROCESSES = multiprocessing.get_context("forkserver")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What the tests said of one faulty version."""

    mutant: Mutant
    noticed_by: str | None  # The first test that failed.
    seconds: float

    def __str__(self) -> str:
        """Return the line of the report."""
        seen = self.noticed_by or "NOTICED BY NONE"
        return f"{self.mutant}: {seen} ({self.seconds:.0f} s)"


def judged(mutant: Mutant, copy: Path) -> Outcome:
    """Run the tests that guard a rule on a faulty version of it."""
    path, said = copy / mutant.file, copy.parent / "said"
    sound = path.read_text()
    path.write_text(mutant.source)
    begun = time.monotonic()
    process = _PROCESSES.Process(target=_run_tests, args=(copy, mutant.tests, said))
    process.start()
    process.join(LIMIT_SECONDS)
    seconds = time.monotonic() - begun
    ended = process.exitcode is not None
    process.kill()
    process.join()
    path.write_text(sound)
    if not ended:
        return Outcome(mutant, "it never ends", seconds)
    if process.exitcode == 0:
        return Outcome(mutant, None, seconds)
    found = FAILED.search(said.read_text())
    if found is None and process.exitcode > 0:
        raise RuntimeError(f"pytest could not run {mutant.tests}:\n{said.read_text()}")
    return Outcome(mutant, found.group(1) if found else "it crashes", seconds)


def _run_tests(copy: Path, tests: Sequence[str], said: Path) -> None:
    """Run tests in a copy of the project, up to the first that fails; leave with their status."""
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # Two faulty versions can have the same time and size.
    settings.register_profile("no smallest example", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("no smallest example")  # Those of the project are made from it.
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os._exit(pytest.main(["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]))


def run(mutants: Sequence[Mutant], jobs: int, until_first: bool) -> list[Outcome]:
    """Judge all, or those of each rule until one is noticed; each job has a copy to itself."""
    copies: Queue[Path] = Queue()
    noticed: set[str] = set()

    def job(mutant: Mutant) -> Outcome | None:
        if until_first and mutant.name in noticed:
            return None
        copy = copies.get()
        try:
            outcome = judged(mutant, copy)
        finally:
            copies.put(copy)
        if outcome.noticed_by:
            noticed.add(mutant.name)
        print(outcome, flush=True)
        return outcome

    _PROCESSES.set_forkserver_preload(["hypothesis", "numpy.random", "pytest", "tvm.relax"])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(copy_of_project(Path(folder) / str(number) / PROJECT.name))
        return [outcome for outcome in pool.map(job, mutants) if outcome is not None]


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
    parser.add_argument("--only", nargs="+", default=[""], help="those with such a text in --list")
    parser.add_argument("--first", action="store_true", help="one version of each is enough")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the faulty versions alone")
    options = parser.parse_args(arguments)
    mutants = [
        mutant
        for one in mutations.ALL
        for mutant in mutants_of(PROJECT, one)
        if any(text in str(mutant) for text in options.only)
    ]
    if options.list:
        print(*mutants, sep="\n")
        return 0
    outcomes = run(mutants, options.jobs, options.first)
    noticed = {outcome.mutant.name for outcome in outcomes if outcome.noticed_by}
    survivors = [outcome for outcome in outcomes if not outcome.noticed_by]
    asked = list(dict.fromkeys(mutant.name for mutant in mutants))
    unguarded = [name for name in asked if name not in noticed]
    print(f"\n{len(outcomes)} faulty versions, {len(survivors)} noticed by no test")
    print(*survivors, sep="\n")
    print(f"{len(asked)} rules and faults, noticed by no test: {', '.join(unguarded) or 'none'}")
    return 1 if unguarded else 0


if __name__ == "__main__":
    sys.exit(main())
