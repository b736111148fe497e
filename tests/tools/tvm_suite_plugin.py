# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs TVM's own tests with our passes in the place of the stock ones.

`tvm_suite` starts it in a process of its own. Each test writes a line of JSON when it begins and
when it ends, so that what a crash leaves behind can be read. Two environment variables say what is
to be done: ``TVM_SUITE_MODE`` names an entry of `MODES`, and ``TVM_SUITE_FOLDER`` is the directory
of the files that are read and written.
"""

from __future__ import annotations

import json
import os
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

STOCK = "stock"
"""The mode in which TVM is left as it is, and in which it is noted which tests run which pass."""

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

        def storage_rewrite() -> Pass:
            def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
                return _by_target(mod, ours(), stock())

            return module_pass(run, opt_level=0, name="tvm_suite.arena")

        with _replaced("StorageRewrite", storage_rewrite):
            yield


def _by_target(mod: tvm.IRModule, for_host: Pass, for_others: Pass) -> tvm.IRModule:
    functions = {var: mod[var] for var in mod.get_global_vars()}
    device = [var for var in functions if _kind(functions[var]) not in (None, HOST_KIND)]
    if not device:
        return for_host(mod)
    others, host = mod.clone(), mod.clone()
    for var in functions:
        del (host if var in device else others)[var]
    others, host = for_others(others), for_host(host)
    result = mod.clone()
    for var in functions:
        result[var] = (others if var in device else host)[var]
    return result


def _kind(func: Any) -> str | None:
    target = func.attrs.get("target") if func.attrs else None
    target = target or Target.current(allow_none=True)
    return None if target is None else str(target.kind.name)


def _gmem() -> AbstractContextManager[None]:
    return _replaced("StaticPlanBlockMemory", lambda: tvm_ext.transform.GMEMAllocate("best"))


MODES: dict[str, tuple[str, Callable[[], AbstractContextManager[None]]]] = {
    "storage_rewrite": ("StorageRewrite", tvm_ext.use_storage_rewrite),
    "arena": ("StorageRewrite", _arena),
    "gmem": ("StaticPlanBlockMemory", _gmem),
    "shared_memory": ("MergeSharedMemoryAllocations", tvm_ext.use_plan_shared_memory),
}
"""For each mode, the stock pass whose place is taken, and what takes it."""


class Suite:
    """The plugin's state: which test runs, and which stock passes it has asked for."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode = mode
        self.log = (folder / "log.jsonl").open("a")
        selected = folder / "selected.json"
        self.selected = set(json.loads(selected.read_text())) if selected.exists() else None
        done = folder / "done.json"
        self.done = set(json.loads(done.read_text())) if done.exists() else set()
        self.asked: set[str] = set()
        self.context = self._noted() if mode == STOCK else MODES[mode][1]()

    def write(self, **entry: Any) -> None:
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note who asks for a stock pass, and hand it out."""
        with pytest.MonkeyPatch.context() as patch:
            for name, module in PASSES.items():
                patch.setattr(module, name, self._noting(name, getattr(module, name)))
            yield

    def _noting(self, name: str, make_pass: Callable[[], Pass]) -> Callable[[], Pass]:
        def noting() -> Pass:
            self.asked.add(name)
            return make_pass()

        return noting

    # ------------------------------------------------------------------------ what pytest calls

    def pytest_sessionstart(self) -> None:
        self.context.__enter__()

    def pytest_sessionfinish(self) -> None:
        self.context.__exit__(None, None, None)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # What is asked for while modules are imported concerns each of their tests.
        self.write(event="collected", tests=len(items), asked=sorted(self.asked))
        self.asked.clear()
        items[:] = [
            item
            for item in items
            if item.nodeid not in self.done
            and (self.selected is None or item.nodeid in self.selected)
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.asked.clear()
        self.write(event="begin", test=nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield
        if self.asked:  # By a fixture, which other tests of the file may share.
            self.write(event="fixture", test=item.nodeid, asked=sorted(self.asked))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            last = str(report.longreprtext).strip().splitlines()[-12:]
            self.write(
                event="outcome",
                test=report.nodeid,
                when=report.when,
                outcome=report.outcome,
                seconds=round(report.duration, 2),
                asked=sorted(self.asked),
                text="\n".join(last) if report.outcome == "failed" else "",
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(event="end", test=nodeid)


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["TVM_SUITE_FOLDER"])
    config.pluginmanager.register(Suite(os.environ["TVM_SUITE_MODE"], folder), "tvm_suite")
