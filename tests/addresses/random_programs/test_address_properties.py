# SPDX-License-Identifier: Apache-2.0
"""Random programs compute the same under every plan, step by step and compiled."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from address_programs import program_inputs, programs
from address_replay import Replay
from address_runs import build, identity, poisoned
from hypothesis import given, note, settings
from hypothesis import strategies as st
from sweeps import swept
from tvm.ir.transform import Sequential

from passes.addresses.transform import PlanAddresses, plan_addresses
from passes.planning import planner_names
from passes.prim_func.address import before_carrying_loops, drop_addresses
from passes.prim_func.problems import ProblemOptions
from passes.storage_rewrite.transform import StorageRewrite
from target_hw.memory import MemoryHierarchy, MemoryScope

ARENA = ProblemOptions(addressed=False)
SCOPES = ("global", "local.UB", "local.L1", "shared.UB")
PLANNERS = st.sampled_from(list(planner_names()))

UNSOUND = ["s_tir.CompactBufferAllocation", "s_tir.CanonicalizeLoop"]
"""Passes of TVM that change what programs compute.

The first would cut a buffer of which only the address of the first element is taken down to that
element, and extern code would write beyond it. The second reads a loop's first value again in its
body, where it may be another one.
"""


def replay(
    mod: tvm.IRModule, planner: str, seed: int = 0, options: ProblemOptions = ARENA
) -> list[np.ndarray]:
    """Run the program of a module under a plan, step by step; return its arrays afterwards."""
    arrays = program_inputs(seed)
    run = Replay(mod["main"], plan_addresses(mod["main"], planner, options))
    run(arrays)
    assert run.num_checked > 0
    return arrays


def tight(func: Any, addressed: bool) -> ProblemOptions:
    """Return memory of which the planner `best` needs the last byte."""

    def options(capacities: Mapping[str, int]) -> ProblemOptions:
        scopes = [MemoryScope(name, capacities.get(name), alignment=8) for name in SCOPES]
        return ProblemOptions(memory=MemoryHierarchy(tuple(scopes)), addressed=addressed)

    needed = dict.fromkeys(SCOPES, 8)
    for scope in plan_addresses(func, "best", options({})).scopes:
        name = scope.problem.memory.name
        needed[name] = max(needed[name], scope.plan.peak)
    return options(needed)


def compiled(
    mod: tvm.IRModule, planner: str, seed: int = 0, in_front: bool = False
) -> list[np.ndarray]:
    """Build the program of a module with arenas, run it, and return its arrays afterwards.

    Behind the plan runs what `tvm_ext.use` has there: it merges an arena's views with it.
    """
    arrays = [tvm.runtime.tensor(array) for array in program_inputs(seed)]
    plan, behind = poisoned(PlanAddresses(planner, "arena")), StorageRewrite(sound=True)
    if in_front:  # There NarrowDataType has not yet widened the indices.
        mod, plan = plan(mod), identity()
    with tvm.transform.PassContext(disabled_pass=UNSOUND):
        run = build(mod, Sequential([plan, behind]))["main"]
    run(*arrays)
    return [array.numpy() for array in arrays]


@swept(4, 3000, programs(), PLANNERS)
def test_no_value_is_overwritten_while_it_is_needed(mod: tvm.IRModule, planner: str):
    note(mod.script())
    replay(mod, planner)


@given(mod=programs(), planner=PLANNERS, addressed=st.booleans())
@settings(max_examples=5)
def test_a_plan_fits_and_is_right_or_is_refused(mod: tvm.IRModule, planner: str, addressed: bool):
    note(mod.script())
    options = tight(mod["main"], addressed)
    replay(mod, "best", options=options)
    try:
        replay(mod, planner, options=options)
    except ValueError as error:
        if f"as planned by {planner!r}" not in str(error):
            raise


@swept(3, 600, programs(), PLANNERS, st.booleans())
def test_an_arena_computes_the_same_when_compiled(mod: tvm.IRModule, planner: str, in_front: bool):
    note(mod.script())
    np.testing.assert_equal(compiled(mod, planner, in_front=in_front), replay(mod, planner))


@given(mod=programs(), planner=PLANNERS)
@settings(max_examples=5)
def test_addresses_change_nothing_else_and_do_not_depend_on_chance(mod: tvm.IRModule, planner: str):
    before = mod.script()
    planned = PlanAddresses(planner)(mod)["main"]
    scopes = plan_addresses(mod["main"], planner, ProblemOptions()).scopes
    uses = [use for scope in scopes for use in scope.attached.allocations.values()]
    # What a loop carries is allocated before it.
    expected = before_carrying_loops(mod["main"], uses)
    assert tvm_ffi.structural_equal(drop_addresses(planned, SCOPES), expected)
    texts = {PlanAddresses(planner, "arena")(mod).script() for _ in range(2)}
    assert len(texts) == 1
    assert mod.script() == before
