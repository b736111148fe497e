# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs TVM's own tests with our passes in the place of the stock ones.

`tvm_suite` starts pytest with it, and with one worker of pytest-xdist, which a new worker follows
when a test ends it. Environment variables say what is to be done: ``TVM_SUITE_MODE`` names an entry
of `MODES`, or is ``stock``, ``TVM_SUITE_LIMIT`` is the seconds that a test may take, and
``TVM_SUITE_REPORT`` the file for the outcome of each test.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir.transform import Pass, PassContext, module_pass

import tvm_ext

PASSES = {
    "StorageRewrite": tirx.transform,
    "StaticPlanBlockMemory": relax.transform,
    "MergeSharedMemoryAllocations": s_tir.transform,
}
"""The stock passes whose places ours take, and the modules that TVM looks them up in."""


@contextmanager
def _replaced(name: str, make_pass: Callable[[], Pass]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PASSES[name], name, make_pass)
        yield


def _gmem() -> AbstractContextManager[None]:
    return _replaced("StaticPlanBlockMemory", lambda: tvm_ext.transform.GMEMAllocate("best"))


_asked: set[str] = set()
"""The stock passes that the running test has asked for."""


@contextmanager
def _noted() -> Iterator[None]:
    """Note who asks for a stock pass, and hand it out."""

    def noting(name: str, make_pass: Callable[[], Pass]) -> Callable[[], Pass]:
        return lambda: _asked.add(name) or make_pass()

    with pytest.MonkeyPatch.context() as patch:
        for name, module in PASSES.items():
            patch.setattr(module, name, noting(name, getattr(module, name)))
        yield


MODES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "storage_rewrite": partial(tvm_ext.use, "StorageRewrite"),
    "sound": partial(tvm_ext.use, "StorageRewrite", sound=True),
    "shared_memory": partial(tvm_ext.use, "PlanSharedMemory"),
    "arena": partial(tvm_ext.use, "PlanAddresses", form="arena"),
    "gmem": _gmem,
}
"""What each mode puts in the place of stock passes: for `shared_memory` and `arena` what the
pipelines ``tvm_ext`` and ``tvm_ext.arena`` do."""


@contextmanager
def _checked(ours: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Put our passes in place, each of which has to leave a module well formed that it gets so."""
    before = {name: getattr(module, name) for name, module in PASSES.items()}
    with ours(), pytest.MonkeyPatch.context() as patch:
        for name, module in PASSES.items():
            make_pass = getattr(module, name)
            if make_pass is not before[name]:
                patch.setattr(module, name, partial(_well_formed, name, make_pass))
        yield


def _well_formed(name: str, make_pass: Callable[[], Pass]) -> Pass:
    inner = make_pass()

    def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        was_well_formed = _is_well_formed(mod)
        result = inner(mod)
        if was_well_formed and not _is_well_formed(result):
            raise AssertionError(f"what stands for {name} leaves an ill-formed module")
        return result

    return module_pass(run, opt_level=0, name=str(inner.info.name))


def _is_well_formed(mod: tvm.IRModule) -> bool:
    if any(isinstance(func, relax.Function) for func in mod.functions.values()):
        return bool(relax.analysis.check_well_formed(mod))  # As `WellFormedInstrument` asks.
    return bool(tirx.analysis.verify_well_formed(mod, assert_mode=False))


def pytest_configure(config: pytest.Config) -> None:
    mode = os.environ["TVM_SUITE_MODE"]
    context = _noted() if mode == "stock" else _checked(MODES[mode])
    context.__enter__()
    config.add_cleanup(lambda: context.__exit__(None, None, None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    _asked.clear()
    signal.alarm(int(os.environ["TVM_SUITE_LIMIT"]))  # It ends the worker, wherever that stands.
    done = yield
    signal.alarm(0)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    report.asked = sorted(_asked)
    return report


_outcomes: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    entry = _outcomes.setdefault(report.nodeid, {"outcome": "passed", "text": "", "asked": []})
    asked = getattr(report, "asked", [])
    entry["asked"] = sorted({*entry["asked"], *asked})
    if report.when == "setup":  # By a fixture, which other tests of the file may share.
        entry["by_fixture"] = asked
    if report.outcome != "passed" and entry["outcome"] != "failed":
        last = str(report.longreprtext).strip().splitlines()[-12:]
        entry |= {"outcome": report.outcome, "text": "\n".join(last)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # In the process that has started the workers.
        Path(os.environ["TVM_SUITE_REPORT"]).write_text(json.dumps(_outcomes))
