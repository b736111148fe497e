# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's own tests of memory planning, with our algorithm in the place of ``greedy``."""

from __future__ import annotations

import importlib
import unittest

import pytest

memory_planning = pytest.importorskip(
    "executorch.exir.memory_planning", reason="ExecuTorch is not installed"
)

from tvm_ext.hosts.executorch import SpecPlanner  # noqa: E402


def test_with_our_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, greedy, calls = SpecPlanner(), memory_planning.greedy, []

    def algorithm(*args: object) -> object:
        calls.append(args)
        with monkeypatch.context() as inside:
            inside.setattr(memory_planning, "greedy", greedy)  # Ours asks it where it has no proof.
            return ours(*args)

    algorithm.__name__ = "greedy"  # ExecuTorch verifies what an algorithm of this name returns.
    monkeypatch.setattr(memory_planning, "greedy", algorithm)
    tests = importlib.reload(importlib.import_module("executorch.exir.tests.test_memory_planning"))
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    failed = [f"{test}: {text}" for test, text in [*result.failures, *result.errors]]
    assert not failed, "\n\n".join(failed)
    assert result.testsRun > 20
    assert len(calls) > 20
