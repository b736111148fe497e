# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's own tests of banks, with our algorithm in the place of ``BankedGreedy``."""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import pytest

banked = pytest.importorskip(
    "executorch.exir.banked_memory_planning", reason="ExecuTorch is not installed"
)

from tvm_ext.hosts.executorch import SpecPlanner  # noqa: E402

OF_GREEDY = (
    "match",  # offsets or sizes of ``greedy`` itself
    "allow_overlapping",  # an option of ``greedy``'s rule
    "is_suite_compatible",  # the algorithm's name
    "the_bank_when",  # the wording of messages
    "collectively_overflow",
    "takes_its_own_object",  # ours shares bytes there
)
"""Parts of names of tests that hold for ``BankedGreedy`` alone."""


def _tests(suite: Any) -> list[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in _tests(part)]


def test_with_our_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banked, "BankedGreedy", _Ours)
    tests = importlib.reload(
        importlib.import_module("executorch.exir.tests.test_banked_memory_planning")
    )
    kept = [
        test
        for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(tests))
        if not any(part in test.id() for part in OF_GREEDY)
    ]
    result = unittest.TestResult()
    unittest.TestSuite(kept).run(result)
    failed = [f"{test}: {text}" for test, text in [*result.failures, *result.errors]]
    assert not failed, "\n\n".join(failed)
    assert result.testsRun > 35


class _Ours(banked.BankedGreedy):  # type: ignore[misc]
    """Our algorithm, made as theirs is."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(banked, "BankedGreedy", type(self).__bases__[0])
            return SpecPlanner(banks=self.target)(*args, **options)
