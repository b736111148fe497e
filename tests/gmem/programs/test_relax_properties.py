# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules: planned memory holds what it must, and programs compute the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import tvm
from hypothesis import strategies as st
from relax_programs import inputs_of, parse, relax_sources
from relax_replay import Replay
from relax_runs import assert_same, lower, planned
from saved_json import saved_json
from sweeps import swept
from tvm import relax

from passes.gmem.transform import GMEMAllocate
from passes.planning import planner_names
from passes.relax.bindings import functions_in_order

PLANNERS = tuple(planner_names())


def replay_some_paths(mod: tvm.IRModule) -> None:
    """Replay each function on a few paths."""
    for variable, _ in functions_in_order(mod):
        for seed in range(4):
            rng = random.Random(seed)
            takes: tuple[Callable[[], bool], ...] = (
                lambda: True,
                lambda: False,
                lambda rng=rng: rng.random() < 0.5,
                lambda rng=rng: rng.random() < 0.5,
            )
            Replay(mod, str(variable.name_hint), takes[seed])()


@swept(5, 2000, relax_sources(), st.sampled_from(PLANNERS))
def test_no_value_is_overwritten_on_any_path(source: str, planner: str):
    lowered = lower(parse(source))
    before = tvm.IRModule(dict(lowered.functions))
    ours = planned(lowered, GMEMAllocate(planner))
    tvm.ir.assert_structural_equal(lowered, before)
    # The same module after a way through JSON, where types are no longer the same objects.
    copy = tvm.ir.load_json(saved_json(lowered))
    tvm.ir.assert_structural_equal(ours, planned(copy, GMEMAllocate(planner)))
    relax.analysis.well_formed(ours)
    replay_some_paths(ours)


@swept(2, 200, relax_sources(), st.sampled_from(PLANNERS))
def test_programs_compute_the_same(source: str, planner: str):
    """Hold the planned program against the same with each tensor left to the runtime."""
    ways = ((1, 0), (0, 1), (1, 1))
    assert_same(lower(parse(source)), GMEMAllocate(planner), *(inputs_of(*way) for way in ways))
