# SPDX-License-Identifier: Apache-2.0
"""Run TVM's own tests with our passes in the place of the stock ones, and print the differences.

    python tests/tools/tvm_suite.py CHECKOUT [--mode MODE ...] [--folder NAME ...]

``CHECKOUT`` is a directory with the ``tests/python`` of the TVM that is installed. Each folder runs
once as it is, which says which tests pass and which of them run one of the passes that we replace;
these run again in each mode. What passes there with stock and not with ours is printed, with the
last lines of its error. The exit status is 1 when there is such a test. With ``--stock FILE`` the
first run is made once, and its outcomes are kept in the file.

A test that crashes its process, or takes longer than ``--limit`` seconds, has failed, and the rest
of its folder runs in a new process. Code that a test runs in a process of its own is not reached by
the replacement, and neither are tests that need a device that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDERS = (
    "codegen",
    "driver",
    "tirx",
    "tirx-analysis",
    "tirx-base",
    "tirx-transform",
    "s_tir",
    "te",
    "runtime",
    "relax",
)
"""The folders of ``tests/python`` whose tests build or lower programs."""

REPLACED = {
    "storage_rewrite": ("StorageRewrite",),
    "sound": ("StorageRewrite",),
    "shared_memory": ("StorageRewrite", "MergeSharedMemoryAllocations"),
    "arena": ("StorageRewrite",),
    "gmem": ("StaticPlanBlockMemory",),
}
"""For each mode, the stock passes whose places are taken; `tvm_suite_plugin.MODES` says by what."""

TOOLS = Path(__file__).resolve().parent

Outcomes = dict[str, dict[str, Any]]
"""Of each test: its outcome, the last lines of its error, and which stock passes it asked for."""


def run_tests(checkout: Path, tests: Sequence[str], mode: str, limit: int) -> Outcomes:
    """Run files, folders or single tests of a checkout in a mode of the plugin."""
    with tempfile.TemporaryDirectory() as folder:
        listed, report = Path(folder, "tests"), Path(folder, "report.json")
        listed.write_text("\n".join(tests))
        paths = [str(TOOLS), str(TOOLS.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TVM_SUITE_MODE": mode,
            "TVM_SUITE_LIMIT": str(limit),
            "TVM_SUITE_REPORT": str(report),
            "TVM_TEST_TARGETS": "llvm",
            "TVM_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-p", "tvm_suite_plugin", "-q", "--no-header"]
        command += ["-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors"]
        command += ["-n", "1", "--max-worker-restart", "100000", f"@{listed}"]
        said = subprocess.run(command, cwd=checkout, env=environment, capture_output=True)
        if not report.exists():
            raise RuntimeError(f"pytest could not run {mode}:\n{said.stdout.decode()}")
        return dict(json.loads(report.read_text()))


def concerned(stock: Outcomes, names: Sequence[str]) -> list[str]:
    """Return the tests that pass with stock and ask for a pass, themselves or by a fixture."""
    by_fixture = {
        test.split("::")[0]
        for test, end in stock.items()
        if not {*names}.isdisjoint(end.get("by_fixture", []))
    }
    return [
        test
        for test, end in stock.items()
        if end["outcome"] == "passed"
        and (not {*names}.isdisjoint(end["asked"]) or test.split("::")[0] in by_fixture)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="a directory with TVM's tests/python")
    parser.add_argument("--mode", action="append", choices=list(REPLACED))
    parser.add_argument("--folder", action="append", help="a folder or file in tests/python")
    parser.add_argument("--limit", type=int, default=120, help="seconds for one test")
    parser.add_argument("--stock", type=Path, help="a JSON file that keeps what stock does")
    parser.add_argument("--output", type=Path, help="a JSON file for the differences")
    options = parser.parse_args(arguments)
    if not (options.checkout / "tests" / "python").is_dir():
        parser.error(f"{options.checkout} has no tests/python")
    kept = options.stock
    known = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    found: dict[str, dict[str, dict[str, str]]] = {}
    for folder in options.folder or FOLDERS:
        if folder not in known:
            path = f"tests/python/{folder}"
            known[folder] = run_tests(options.checkout, [path], "stock", options.limit)
            if kept is not None:
                kept.write_text(json.dumps(known) + "\n")
        stock = known[folder]
        passed = sum(end["outcome"] == "passed" for end in stock.values())
        print(f"{folder}: {len(stock)} tests, {passed} pass with stock", flush=True)
        for mode in options.mode or REPLACED:
            tests = concerned(stock, REPLACED[mode])
            ours = run_tests(options.checkout, tests, mode, options.limit) if tests else {}
            missing = {"outcome": "not run", "text": ""}
            ends = {test: ours.get(test, missing) for test in tests}
            differ = {test: end for test, end in ends.items() if end["outcome"] != "passed"}
            names = " or ".join(REPLACED[mode])
            print(f"  {mode}: {len(tests)} run {names}, {len(differ)} differ", flush=True)
            for test, end in differ.items():
                print(f"    {end['outcome']}: {test}", flush=True)
                print(*(f"      {line}" for line in end["text"].splitlines()), sep="\n", flush=True)
            found.setdefault(mode, {})[folder] = {t: end["outcome"] for t, end in differ.items()}
            if options.output:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(tests for folders in found.values() for tests in folders.values()))


if __name__ == "__main__":
    sys.exit(main())
