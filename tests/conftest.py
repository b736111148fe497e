# SPDX-License-Identifier: Apache-2.0
"""What tests share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import quick_stacks

if TYPE_CHECKING:
    import corpus as functions

# Names of planners are parameters of tests: those that features declare are there from the start.
import passes.ascend  # noqa: F401
import passes.gmem  # noqa: F401
import passes.layer_group  # noqa: F401
import passes.storage_rewrite  # noqa: F401

# What tests and benchmarks share.
sys.path.append(str(Path(__file__).parent / "lib"))

# What lives long is hardly ever garbage: to look through it again and again costs a twentieth of a
# run, and a sixth of the time in which tests are collected.
gc.set_threshold(5000, 10, 100)
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not in what lives to the end: modules and the tests."""
    gc.freeze()
    gc.enable()


def is_sweep(config: pytest.Config) -> bool:
    """Whether what runs is what default runs leave out."""
    return str(config.option.markexpr) == "slow"


def pytest_configure(config: pytest.Config) -> None:
    """Let each property test see the same sample in every default run, and others in the sweeps."""
    if config.getoption("numprocesses", None):
        # Workers run the tests, and wait for what this process imports, which is nothing.
        config.pluginmanager.unregister(name="hypothesispytest")
        return
    quick_stacks.install()
    # Hypothesis comes with a plugin, so pytest would rewrite every assertion within it.
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("hypothesis")
    import llvm_level
    import sweeps as samples
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    from passes.planning.planners import relocation as improve

    sweeps = is_sweep(config)
    samples.quick_only = config.option.markexpr == "not slow"
    settings.register_profile(
        "any machine",
        deadline=None,  # A loaded machine is no fault of what is tested.
        # Networks are large, and many drawn windows are none.
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
        derandomize=not sweeps,
        print_blob=True,
    )
    settings.load_profile("any machine")
    llvm_level.set_level(llvm_level.SWEEP if sweeps else llvm_level.DEFAULT)
    if not sweeps:
        # Numbers of our sources would make samples differ by what is imported when they are drawn,
        # and each process would take every module apart for them.
        providers.is_local_module_file = lambda _file: False
        # Of many small problems, each would be searched in plain Python for a tenth of a second.
        improve.FIRST_WORK = 0


SHARED = {
    "the corpus": (
        "tests/addresses/test_address_corpus.py",
        "tests/storage_rewrite/test_storage_rewrite_corpus.py",
        "tests/tvm_ext/test_workloads.py",
    ),
    "the Ascend kernels": (
        "tests/ascend/test_ascend_cost.py",
        "tests/ascend/test_kernel_plans.py",
        "tests/ascend/test_kernels.py",
        "tests/ascend/test_pipes.py",
    ),
    "the browser": ("tests/tvm_ext/map/",),
    "the notebooks": ("tests/test_tutorials.py",),
}
"""What takes long to make, and the files and folders that ask for it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker make what files share, and make it first, where workers get whole files.

    By default the files with most tests come first, and what few long tests make would be waited
    for at the end.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            asking = (name for name, files in SHARED.items() if file.startswith(files))
            return next(asking, file)

        def _assign_work_unit(self, node: Any) -> None:
            first = next((name for name in SHARED if name in self.workqueue), None)
            if first:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return ByWhatIsShared(config, log)


@pytest.fixture(autouse=True)
def forget_planners() -> Iterator[None]:
    """Forget the planners that a test registers: others ask for all that there are."""
    from passes.planning import planner, planner_names

    before = planner_names()
    yield
    for name in planner_names():
        if name not in before:
            del planner._PLANNERS[name]


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> list[functions.Entry]:
    """Every function that the workloads lower to, right before storage planning.

    By default one in eight of each family, an operator for two targets; and no networks, whose
    operators are in the families too.
    """
    import corpus as functions  # Most runs of a few tests can do without the workloads.

    if is_sweep(pytestconfig):
        return functions.entries()
    names = [name for name, each in functions.WORKLOADS.items() if each.kind != "model"]
    return functions.entries(names, every_target=False, step=8)
