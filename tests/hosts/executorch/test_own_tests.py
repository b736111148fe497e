# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's own tests of memory planning and of banks, with our algorithm in its place."""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import pytest

memory_planning = pytest.importorskip(
    "executorch.exir.memory_planning", reason="ExecuTorch is not installed"
)

from executorch.exir import banked_memory_planning as banked  # noqa: E402

from tvm_ext.hosts.executorch import SpecPlanner  # noqa: E402

OF_GREEDY = (
    "match",  # offsets or sizes of ``greedy`` itself
    "allow_overlapping",  # an option of ``greedy``'s rule
    "is_suite_compatible",  # the algorithm's name
    "the_bank_when",  # the wording of messages
    "collectively_overflow",
    "takes_its_own_object",  # ours shares bytes there
)
"""Parts of names of tests of banks that hold for ``BankedGreedy`` alone."""


def own_tests(module: str, but: tuple[str, ...] = ()) -> int:
    """Run the tests of a module of ExecuTorch's, of which none may fail; return how many ran."""

    loaded = importlib.reload(importlib.import_module(f"executorch.exir.tests.{module}"))
    classes: Any = unittest.defaultTestLoader.loadTestsFromModule(loaded)
    found = [test for of_class in classes for test in of_class]
    result = unittest.TestResult()
    unittest.TestSuite(t for t in found if not any(part in t.id() for part in but)).run(result)
    failed = [f"{test}: {text}" for test, text in [*result.failures, *result.errors]]
    assert not failed, "\n\n".join(failed)
    return result.testsRun


def test_of_memory_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, calls = SpecPlanner(), []

    def algorithm(*args: object) -> object:
        calls.append(args)
        return ours(*args)

    algorithm.__name__ = "greedy"  # ExecuTorch verifies what an algorithm of this name returns.
    monkeypatch.setattr(memory_planning, "greedy", algorithm)
    assert own_tests("test_memory_planning") > 20
    assert len(calls) > 20


def test_of_banks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banked, "BankedGreedy", _Ours)
    assert own_tests("test_banked_memory_planning", OF_GREEDY) > 35


class _Ours(banked.BankedGreedy):  # type: ignore[misc]
    """Our algorithm, made as theirs is."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(banked, "BankedGreedy", type(self).__bases__[0])
            return SpecPlanner(banks=self.target)(*args, **options)
