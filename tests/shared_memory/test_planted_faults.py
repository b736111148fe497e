# SPDX-License-Identifier: Apache-2.0
"""The replay sees what happens when a rule of the epochs is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from block_replay import replay
from kernels import CASES
from opencl_runs import lowered
from tagged_bytes import FaultError

import tvm_ext
from passes.shared_memory.analysis import statement_uses, steps
from passes.shared_memory.planning import epochs
from passes.shared_memory.planning.kernel import Branch, Event, Loop, What

Patch = Callable[[pytest.MonkeyPatch], None]


def without_waiting_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epochs, "_fixpoint", lambda *_: None)


def without_rounds(patch: pytest.MonkeyPatch) -> None:
    def add_all(flow: Any, given: Any, ends: list[int]) -> list[int]:
        flat = [s for step in given for s in (step.body if isinstance(step, Loop) else (step,))]
        return original(flow, flat, ends)

    original = epochs._Flow.add_all
    patch.setattr(epochs._Flow, "add_all", add_all)


def without_second_arms(patch: pytest.MonkeyPatch) -> None:
    def add_all(flow: Any, given: Any, ends: list[int]) -> list[int]:
        cut = [Branch(step.arms[:1]) if isinstance(step, Branch) else step for step in given]
        return original(flow, cut, ends)

    original = epochs._Flow.add_all
    patch.setattr(epochs._Flow, "add_all", add_all)


def with_all_threads_alike(patch: pytest.MonkeyPatch) -> None:
    def add_all(flow: Any, given: Any, ends: list[int]) -> list[int]:
        alike = [Branch(step.arms, True) if isinstance(step, Branch) else step for step in given]
        return original(flow, alike, ends)

    original = epochs._Flow.add_all
    patch.setattr(epochs._Flow, "add_all", add_all)


def without(what: What) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def add(flow: Any, event: Event, before: Any) -> int:
            return original(flow, Event(event.what) if event.what is what else event, before)

        original = epochs._Flow.add
        patch.setattr(epochs._Flow, "add", add)

    return plant


def without_addresses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statement_uses._Walk, "_hand_on", lambda *_: None)


def with_warps_barriers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps._Walk, "_meets", lambda _self, name, _call: name.endswith("storage_sync"))


FAULTS: dict[str, tuple[Patch, str]] = {
    "values that wait": (without_waiting_values, "carried"),
    "rounds of a loop": (without_rounds, "carried"),
    "arms of a branch": (without_second_arms, "half"),
    "threads that take different arms": (with_all_threads_alike, "half"),
    "reads": (without(What.READ), "three phases"),
    "writes": (without(What.WRITE), "three phases"),
    "addresses": (without_addresses, "by address"),
    "barriers of a warp": (with_warps_barriers, "warp"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_left_out_is_seen(name: str, monkeypatch: pytest.MonkeyPatch):
    plant, case = FAULTS[name]
    plant(monkeypatch)
    kernel = lowered(CASES[case].func, tvm_ext.use_plan_shared_memory)
    arguments, expected = CASES[case].arguments()
    try:
        replay(kernel, arguments, CASES[case].grid, "backward")
    except FaultError:
        return
    assert not np.allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)
