# SPDX-License-Identifier: Apache-2.0
"""What tests share."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import llvm_level
import pytest
from hypothesis import HealthCheck, settings

from passes.planning import planner, planner_names

if TYPE_CHECKING:
    import corpus as functions

# For each function that it parses, and each call of an inlined one, TVMScript takes a stack with
# source lines. For a frame without a file, `inspect` looks through all modules for the one that the
# frame is of, and finds none: milliseconds for each frame, of which an import has many. That there
# is none can be said beforehand: a name that no module has.
_EVALUATED = ("<ast>", "<string>")
_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_STARTED = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe()))
for _name in (*_EVALUATED, *_IMPORTING, *_STARTED):
    if _name.startswith("<"):
        inspect.modulesbyfile.setdefault(_name, "")


# What lives long is hardly ever garbage: to look through it again and again costs a twentieth.
gc.set_threshold(700, 10, 100)


def pytest_collection_finish() -> None:
    """Look for garbage no more in what lives to the end: modules, syntax trees, the tests."""
    gc.freeze()


def is_sweep(config: pytest.Config) -> bool:
    """Whether what runs is what default runs leave out."""
    return str(config.option.markexpr) == "slow"


def pytest_configure(config: pytest.Config) -> None:
    """Let each property test see the same sample in every default run, and others in the sweeps."""
    sweeps = is_sweep(config)
    settings.register_profile(
        "any machine",
        deadline=None,  # A loaded machine is no fault of what is tested.
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not sweeps,
        print_blob=True,
    )
    settings.load_profile("any machine")
    llvm_level.set_level(llvm_level.SWEEP if sweeps else llvm_level.DEFAULT)


CORPUS = (
    "tests/addresses/test_address_corpus.py",
    "tests/addresses/test_corpus_peaks.py",
    "tests/storage_rewrite/test_storage_rewrite_corpus.py",
    "tests/storage_rewrite/test_storage_rewrite_sound.py",
    "tests/tvm_ext/test_workloads.py",
)
"""The files that ask for the corpus, which takes long to make."""

NOTEBOOKS = "tests/test_tutorials.py"
"""Each notebook is a process of its own: the last of a run are shared out one by one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker make the corpus, where workers are given whole files."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            if file in CORPUS:
                return "the corpus"
            return nodeid if file == NOTEBOOKS else file

    return ByWhatIsShared(config, log)


@pytest.fixture(autouse=True)
def forget_planners() -> Iterator[None]:
    """Forget the planners that a test registers: others ask for all that there are."""
    before = planner_names()
    yield
    for name in planner_names():
        if name not in before:
            del planner._PLANNERS[name]


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> list[functions.Entry]:
    """Every function that the workloads lower to, right before storage planning.

    By default a network is lowered for one target.
    """
    import corpus as functions  # Most runs of a few tests can do without the workloads.

    return functions.entries(every_target=is_sweep(pytestconfig))
