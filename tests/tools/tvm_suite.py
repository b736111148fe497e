# SPDX-License-Identifier: Apache-2.0
"""Run TVM's own tests with our passes in the place of the stock ones, and print the differences.

    python tests/tools/tvm_suite.py CHECKOUT [--mode MODE ...] [--folder NAME ...]

``CHECKOUT`` is a directory with the ``tests/python`` of the TVM that is installed. Each folder runs
once as it is, which says which tests pass and which of them run one of the passes that we replace;
these run again in each mode. What passes there with stock and not with ours is printed, with the
last lines of its error. The exit status is 1 when there is such a test. With ``--stock FILE`` the
first run is made once, and its outcomes are kept in the file.

A test that crashes its process, or takes longer than ``--limit`` seconds, is noted as such, and the
rest of its folder runs in a new process. Code that a test runs in a process of its own is not
reached by the replacement, and neither are tests that need a device that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDERS = (
    "codegen",
    "driver",
    "tirx",
    "tirx-analysis",
    "tirx-base",
    "tirx-transform",
    "s_tir",
    "runtime",
    "relax",
)
"""The folders of ``tests/python`` whose tests build or lower programs."""

STOCK = "stock"
REPLACED = {
    "storage_rewrite": "StorageRewrite",
    "arena": "StorageRewrite",
    "gmem": "StaticPlanBlockMemory",
    "shared_memory": "MergeSharedMemoryAllocations",
}
"""For each mode, the stock pass whose place is taken; `tvm_suite_plugin.MODES` says by what."""

TOOLS = Path(__file__).resolve().parent
PROJECT = TOOLS.parents[1]


@dataclass
class Outcomes:
    """What the tests of a folder did in one mode.

    Attributes
    ----------
    outcome : dict of str to str
        For each test, ``passed``, ``failed``, ``skipped``, ``crashed`` or ``out of time``.
    text : dict of str to str
        For each test that failed, the last lines of its report.
    asked : dict of str to list of str
        For each test, the stock passes that were asked for while it ran.
    seconds : float
        Wall clock of the whole folder.
    """

    outcome: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def run_folder(
    checkout: Path, folder: str, mode: str, limit: float, selected: Sequence[str] | None = None
) -> Outcomes:
    """Run the tests of one folder in one mode, in as many processes as crash and one more.

    Parameters
    ----------
    checkout : Path
        The directory with ``tests/python``.
    folder : str
        One of its folders.
    mode : str
        ``stock``, or a key of `REPLACED`.
    limit : float
        Seconds that a test may take, and the collection of the folder five times as many.
    selected : sequence of str, optional
        The tests to run; by default all of them.
    """
    outcomes = Outcomes()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        if selected is not None:
            (state / "selected.json").write_text(json.dumps(list(selected)))
        while True:
            (state / "done.json").write_text(json.dumps(list(outcomes.outcome)))
            before = len(outcomes.outcome)
            ended_how = _run_process(checkout, folder, mode, limit, state)
            _read_log(state / "log.jsonl", outcomes, ended_how)
            if ended_how is None or len(outcomes.outcome) == before:
                break
    outcomes.seconds = time.monotonic() - begun
    return outcomes


def _run_process(checkout: Path, folder: str, mode: str, limit: float, state: Path) -> str | None:
    """Run pytest once; say how it ended, or None when it came to its own end."""
    paths = [str(TOOLS), str(PROJECT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TVM_SUITE_MODE": mode,
        "TVM_SUITE_FOLDER": str(state),
        "TVM_TEST_TARGETS": "llvm",
        "TVM_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "tvm_suite_plugin", "-p", "no:cacheprovider"]
    command += ["-q", "--no-header", "--continue-on-collection-errors"]
    command += ["-o", "addopts=", f"tests/python/{folder}"]
    log = state / "log.jsonl"
    with (state / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        last, size = time.monotonic(), -1
        while process.poll() is None:
            time.sleep(0.5)
            now = log.stat().st_size if log.exists() else 0
            if now != size:
                last, size = time.monotonic(), now
            elif time.monotonic() - last > (limit if size else 5 * limit):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return "out of time"
    # 0 to 5 are pytest's own; a process that a signal ended has a negative one.
    return None if 0 <= process.returncode <= 5 else "crashed"


def _read_log(log: Path, outcomes: Outcomes, ended_how: str | None) -> None:
    """Take over what the plugin wrote; what began and did not end, ended with its process."""
    if not log.exists():
        return
    running: str | None = None
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        test = entry.get("test")
        if entry["event"] == "begin":
            running = test
        elif entry["event"] == "end":
            running = None
            outcomes.outcome.setdefault(test, "passed")
        elif entry["event"] == "fixture":
            outcomes.asked[f"{test.split('::')[0]}::"] = entry["asked"]
        elif entry["event"] == "outcome":
            outcomes.asked[test] = entry["asked"]
            if outcomes.outcome.get(test) != "failed":
                outcomes.outcome[test] = entry["outcome"]
                outcomes.text[test] = entry["text"]
    log.unlink()
    if running is not None:
        outcomes.outcome[running] = ended_how or "crashed"
        outcomes.text[running] = f"the process {ended_how or 'crashed'}"


def stock_outcomes(checkout: Path, folder: str, limit: float, kept: Path | None) -> Outcomes:
    """Return what the tests of a folder do with TVM as it is: from a file, or by running them.

    Parameters
    ----------
    checkout, folder, limit
        As in `run_folder`.
    kept : Path, optional
        A JSON file with the outcomes by folder. What is not in it is added.
    """
    known = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    if folder in known:
        return Outcomes(**known[folder])
    outcomes = run_folder(checkout, folder, STOCK, limit)
    if kept is not None:
        known[folder] = asdict(outcomes)
        kept.write_text(json.dumps(known) + "\n")
    return outcomes


def concerned(stock: Outcomes, name: str) -> list[str]:
    """Return the tests that pass with stock and ask for a pass, themselves or by a fixture."""

    def asks(test: str) -> bool:
        by_fixture = stock.asked.get(f"{test.split('::')[0]}::", [])
        return name in stock.asked.get(test, []) or name in by_fixture

    return [test for test, outcome in stock.outcome.items() if outcome == "passed" and asks(test)]


def differences(stock: Outcomes, ours: Outcomes) -> dict[str, str]:
    """Return the tests that pass with stock and not with ours, with how they ended."""
    return {
        test: outcome
        for test, outcome in ours.outcome.items()
        if outcome != "passed" and stock.outcome.get(test) == "passed"
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="a directory with TVM's tests/python")
    parser.add_argument("--mode", action="append", choices=list(REPLACED))
    parser.add_argument("--folder", action="append", help="a folder or file in tests/python")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one test")
    parser.add_argument("--stock", type=Path, help="a JSON file that keeps what stock does")
    parser.add_argument("--output", type=Path, help="a JSON file for the differences")
    options = parser.parse_args(arguments)
    if not (options.checkout / "tests" / "python").is_dir():
        parser.error(f"{options.checkout} has no tests/python")
    found: dict[str, dict[str, dict[str, str]]] = {}
    for folder in options.folder or FOLDERS:
        stock = stock_outcomes(options.checkout, folder, options.limit, options.stock)
        passed = sum(outcome == "passed" for outcome in stock.outcome.values())
        print(
            f"{folder}: {len(stock.outcome)} tests, {passed} pass with stock, "
            f"{stock.seconds:.0f} s",
            flush=True,
        )
        for mode in options.mode or REPLACED:
            tests = concerned(stock, REPLACED[mode])
            if not tests:
                continue
            ours = run_folder(options.checkout, folder, mode, options.limit, tests)
            different = differences(stock, ours)
            missing = [test for test in tests if test not in ours.outcome]
            different.update((test, "not run") for test in missing)
            print(
                f"  {mode}: {len(tests)} of them run {REPLACED[mode]}, {len(different)} differ, "
                f"{ours.seconds:.0f} s",
                flush=True,
            )
            for test, outcome in different.items():
                print(f"    {outcome}: {test}", flush=True)
                for line in ours.text.get(test, "").splitlines():
                    print(f"      {line}", flush=True)
            found.setdefault(mode, {})[folder] = different
            if options.output:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(tests for folders in found.values() for tests in folders.values()))


if __name__ == "__main__":
    sys.exit(main())
