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
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir.transform import Pass, PassContext, module_pass
from tvm.target import Target

import tvm_ext

HOST_KIND = "llvm"
"""The kind of target whose functions are planned in arena form."""

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


@contextmanager
def _arena() -> Iterator[None]:
    """Plan the functions of the host in arena form, and leave those of other targets to stock."""
    stock = tirx.transform.StorageRewrite
    # An arena is one allocation in the place of several: what is left alone is shared by stock.
    with tvm_ext.use_plan_addresses("best", "arena"):
        ours = tirx.transform.StorageRewrite

        def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
            return _by_target(mod, ours(), stock())

        both = module_pass(run, opt_level=0, name="tvm_suite.arena")
        with _replaced("StorageRewrite", lambda: both):
            yield


def _by_target(mod: tvm.IRModule, for_host: Pass, for_others: Pass) -> tvm.IRModule:
    result = mod.clone()
    for plan, on_host in ((for_host, True), (for_others, False)):
        part = mod.clone()
        for var in mod.get_global_vars():
            if (_kind(mod[var]) in (None, HOST_KIND)) != on_host:
                del part[var]
        for var, func in plan(part).functions.items():
            result[var] = func
    return result


def _kind(func: Any) -> str | None:
    target = func.attrs.get("target") if func.attrs else None
    target = target or Target.current(allow_none=True)
    return None if target is None else str(target.kind.name)


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
    "stock": _noted,
    "storage_rewrite": tvm_ext.use_storage_rewrite,
    "arena": _arena,
    "gmem": _gmem,
    "shared_memory": tvm_ext.use_plan_shared_memory,
}


def pytest_configure(config: pytest.Config) -> None:
    context = MODES[os.environ["TVM_SUITE_MODE"]]()
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
