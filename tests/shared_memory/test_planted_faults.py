# SPDX-License-Identifier: Apache-2.0
"""The replay sees what happens when a rule of the epochs is left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from block_replay import replay
from kernels import CASES
from opencl_runs import lowered
from tagged_bytes import FaultError
from test_random_kernels import drawn, is_right_alone, replayed
from tvm.script import tirx as T

import tvm_ext
from passes.shared_memory.analysis import kernel_memory, statement_uses
from passes.shared_memory.planning import epochs
from passes.shared_memory.planning.thread_block import Event, EventBranch, EventLoop, What

Patch = Callable[[pytest.MonkeyPatch], None]
COPY = "tirx.s_tir.cp_async_raw"


def without_waiting_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epochs, "_fixpoint", lambda *_: None)


def without_rounds(patch: pytest.MonkeyPatch) -> None:
    def add_all(flow: Any, given: Any, ends: list[int]) -> list[int]:
        flat = [
            s for step in given for s in (step.body if isinstance(step, EventLoop) else (step,))
        ]
        return original(flow, flat, ends)

    original = epochs._Flow.add_all
    patch.setattr(epochs._Flow, "add_all", add_all)


def without_second_arms(patch: pytest.MonkeyPatch) -> None:
    def add_all(flow: Any, given: Any, ends: list[int]) -> list[int]:
        cut = [
            EventBranch(step.arms[:1]) if isinstance(step, EventBranch) else step for step in given
        ]
        return original(flow, cut, ends)

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
    patch.setattr(statement_uses.BufferUses, "_visit_var", lambda *_: None)


def with_warps_barriers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        kernel_memory._Walk, "_meets", lambda _self, name, _call: name.endswith("storage_sync")
    )


FAULTS: dict[str, tuple[Patch, str]] = {
    "values that wait": (without_waiting_values, "carried"),
    "rounds of a loop": (without_rounds, "carried"),
    "arms of a branch": (without_second_arms, "half"),
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


# In random kernels, with a planner that shares whatever may be shared


def with_event(change: Callable[[Event], Event]) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def add(flow: Any, event: Event, before: Any) -> int:
            return original(flow, change(event), before)

        original = epochs._Flow.add
        patch.setattr(epochs._Flow, "add", add)

    return plant


def taken_for(what: What, other: What) -> Patch:
    return with_event(lambda one: replace(one, what=other) if one.what is what else one)


def waiting_for_all(event: Event) -> Event:
    return replace(event, pending=-1) if event.what is What.WAIT else event


RANDOM: dict[str, tuple[Patch, range]] = {
    "copies": (taken_for(What.COPY, What.BEGIN), range(16, 18)),
    "copies on their way": (taken_for(What.COPY, What.WRITE), range(16, 18)),
}


def is_seen(seeds: range) -> bool:
    """Whether the replay of a random kernel ends in a fault or in other numbers."""
    for seed in seeds:
        kernel, rounds = drawn(random.Random(seed).randint), 1 + seed % 2
        if is_right_alone(kernel, rounds):
            try:
                replayed(kernel, rounds, "backward", "first_fit")
            except (FaultError, AssertionError):
                return True
    return False


@pytest.mark.parametrize("name", RANDOM)
def test_random_kernels_show_a_rule_that_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch):
    plant, seeds = RANDOM[name]
    assert not is_seen(seeds)
    plant(monkeypatch)
    assert is_seen(seeds)


@T.prim_func(s_tir=True)
def two_groups(x: T.Buffer((8,), "float32"), o: T.Buffer((8,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
    first = T.alloc_buffer((8,), "float32", scope="shared")
    second = T.alloc_buffer((16,), "float32", scope="shared")
    behind = T.alloc_buffer((16,), "float32", scope="shared")
    T.evaluate(T.call_intrin("float32", COPY, first.data, tx, x.data, tx, 4))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    T.evaluate(T.call_intrin("float32", COPY, second.data, tx, x.data, tx, 4))
    T.evaluate(T.call_intrin("float32", COPY, second.data, tx + 8, x.data, tx, 4))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 1))
    T.tvm_storage_sync("shared")
    o[tx] = first[7 - tx]
    T.tvm_storage_sync("shared")
    behind[tx] = o[tx]
    behind[tx + 8] = o[tx]
    T.tvm_storage_sync("shared")
    o[tx] = behind[15 - tx] + behind[7 - tx]
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 0))


def test_a_group_that_is_not_waited_for_yet_keeps_its_bytes(monkeypatch: pytest.MonkeyPatch):
    """`second` is on its way to the end, and nobody reads it; `behind` is too large for `first`."""

    def run() -> np.ndarray:
        kernel = lowered(two_groups, lambda: tvm_ext.use_plan_shared_memory("first_fit"))
        given = {"x": np.arange(8, dtype="float32"), "o": np.zeros(8, "float32")}
        replay(kernel, given, (1,), "backward")
        return given["o"]

    np.testing.assert_array_equal(run(), 2 * np.arange(8, dtype="float32"))
    with_event(waiting_for_all)(monkeypatch)
    with pytest.raises(FaultError, match="a copy is on its way"):
        run()
