# SPDX-License-Identifier: Apache-2.0
"""Random kernels compute the same under every plan, in memory as tight as it can be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_replay import OverwrittenError, Replay
from address_runs import build, poisoned
from ascend_programs import FACTORS, LENGTH, ascend_plan, kernels, random_kernel
from hypothesis import given, note, settings
from hypothesis import strategies as st
from sweeps import sample
from tvm import tirx
from tvm.ir.transform import Sequential
from tvm.target import Target

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.ascend.kernel import AscendOptions
from passes.ascend.transform import WORKSPACE_BYTES
from passes.driver import AddressPlan
from passes.planning import Budget, lower_bound
from passes.prim_func.address import before_carrying_loops, drop_addresses
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import Alternative, Loop, Statement, Step
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory

SCOPES = ("local.UB", "local.L1", "local.L0A", "local.L0B", "local.L0C", "global.workspace")
ROOMY = MemoryHierarchy(tuple(MemoryScope(scope, alignment=32) for scope in SCOPES))
TIGHTNESS = (1.0, 1.1, 1.25, 1.5, 2.0, 100.0)
"""Capacities to try, as multiples of what no plan needs less than."""
BUDGET = Budget(nodes=1_500)
# LLVM gets `b[(i + j) % 8 + k % 2 * 8]` wrong when it vectorizes, in programs without a plan, too.
TARGET = "ascend/910b-llvm"

Options = dict[str, object]
PLANS = st.fixed_dictionaries(
    {
        "search": st.sampled_from(("search", "mirror")),
        "strategy": st.sampled_from(("default", "largest-first")),
        "restrict_inplace_as_isa": st.booleans(),
    }
)
EACH: list[Options] = [
    {"search": "search"},
    {"search": "mirror"},
    {"search": "mirror", "strategy": "largest-first"},
    {"degrade": True},
]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    # Memory as tight as this makes the pass warn each time.
    caplog.set_level(logging.ERROR, "tvm_ext.AscendPlanMemory")


def drawn(seed: int) -> tvm.IRModule:
    """Return a random kernel for a chip whose pipelines are known."""
    mod = random_kernel(seed)
    return tvm.IRModule({"main": mod["main"].with_attr("target", Target(TARGET))})


def memories(func: tirx.PrimFunc, options: Options) -> Iterator[MemoryHierarchy]:
    """Yield memories for a function, the tightest first."""
    restrict = bool(options.get("restrict_inplace_as_isa"))
    read = AscendOptions(memory=ROOMY, restrict_inplace_as_isa=restrict).read(func)
    bounds = {}
    for number, problem in enumerate(read.problems):
        if options.get("degrade"):  # It may give up all slots but one.
            single = {buffer.name: 1 for buffer in problem.buffers if not buffer.pinned}
            problem = read.with_slots(number, single)
        bounds[problem.memory.name] = lower_bound(problem)
    for factor in TIGHTNESS:
        capacities = {s: -(-int(bounds.get(s, 64) * factor) // 32) * 32 for s in SCOPES}
        if options.get("degrade"):
            del capacities["global.workspace"]  # It has to hold what is asked for.
        yield MemoryHierarchy(tuple(MemoryScope(s, capacities.get(s), 32) for s in SCOPES))


def tightest(func: tirx.PrimFunc, options: Options) -> tuple[MemoryHierarchy, AddressPlan]:
    """Return the tightest of these memories in which a plan is found, and the plan."""
    for memory in memories(func, options):
        try:
            return memory, ascend_plan(func, AscendOptions(memory=memory, budget=BUDGET, **options))
        except ValueError as error:
            if "overflow, requires" not in str(error):
                raise
    raise AssertionError("a hundred times the bound is too little")


def inputs(seed: int) -> list[np.ndarray]:
    values, length = np.random.default_rng(seed), LENGTH * max(FACTORS)
    return [
        values.integers(-3, 3, length).astype("int32"),
        values.integers(-3, 3, length).astype("int16"),
        np.zeros(length, "int64"),
    ]


def with_workspace(func: tirx.PrimFunc, plan: AddressPlan, reuse: bool) -> AddressPlan:
    """Return a plan of what is on chip with one of the workspace added."""
    options = AscendOptions(
        "global-work-space-plan", enable_global_workspace_reuse=reuse, memory=ROOMY
    )
    return AddressPlan(plan.found, plan.scopes + ascend_plan(func, options).scopes)


def replay(mod: tvm.IRModule, options: Options, seed: int = 0, reuse: bool = True) -> AddressPlan:
    """Run a kernel under its tightest plan, step by step."""
    func = mod["main"]
    _, plan = tightest(func, options)
    run = Replay(func, with_workspace(func, plan, reuse))
    run(inputs(seed))
    assert run.num_checked > 0
    return plan


def compiled(mod: tvm.IRModule, options: Options, seed: int = 0) -> list[np.ndarray]:
    """Build a kernel with arenas in memory that is tight, run it, and return its arrays."""
    # The maximum of a number and itself is in place, and lowered it is a copy, which is not.
    lowered = lowering.capture(mod, TARGET)
    for memory in memories(lowered["main"], options):
        plan = partial(
            AscendPlanMemory, form="arena", target=with_memory(TARGET, memory), **options
        )
        both = [
            poisoned(plan("global-work-space-plan", enable_global_workspace_reuse=True)),
            poisoned(plan(budget=BUDGET)),
        ]
        try:
            executable = build(mod, Sequential(both), TARGET)
        except ValueError as error:
            if "overflow, requires" not in str(error):
                raise
            continue
        arrays = [tvm.runtime.tensor(array) for array in inputs(seed)]
        executable["main"](*arrays)
        return [array.numpy() for array in arrays]
    raise AssertionError("a hundred times the bound is too little")


def unplanned(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    """Run a kernel with bytes of its own for each buffer, step by step."""
    arrays = inputs(seed)
    empty = MemoryHierarchy(())
    found = find_problems(mod["main"], ProblemOptions(memory=empty))
    Replay(mod["main"], AddressPlan(found, ()))(arrays)
    return arrays


@given(mod=kernels(), options=PLANS, reuse=st.booleans())
@settings(max_examples=3)
def test_no_value_is_overwritten_while_it_is_needed(
    mod: tvm.IRModule, options: Options, reuse: bool
):
    note(mod.script())
    replay(mod, options, reuse=reuse)


def test_the_random_kernels_reach_every_level_and_take_more_slots():
    levels, widened = set(), 0
    for seed in range(8):
        plan = replay(random_kernel(seed), EACH[2], seed)
        for scope in plan.scopes:
            levels |= {reuse.level for reuse in scope.plan.reuse.values()}
            slots = {buffer.name: buffer.slots for buffer in scope.problem.buffers}
            widened += sum(len(o) > slots[name] for name, o in scope.plan.offsets.items())
        if levels == {0, 1, 2} and widened:
            break
    assert levels == {0, 1, 2}
    assert widened > 0


def test_random_kernels_give_up_slots():
    lost = 0
    for seed in range(3):
        mod = drawn(seed)
        plan = replay(mod, {"degrade": True}, seed)
        read = AscendOptions(memory=ROOMY).read(mod["main"])
        asked = {b.name: b.slots for problem in read.problems for b in problem.buffers}
        for scope in plan.scopes:
            lost += sum(max(0, asked[b.name] - b.slots) for b in scope.problem.buffers)
    assert lost > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", EACH, ids=str)
def test_no_value_is_overwritten_in_many_kernels(options: Options):
    for seed in range(200):
        replay(drawn(seed), options, seed, reuse=bool(seed % 2))


def test_the_replay_sees_a_life_that_ends_too_early(monkeypatch: pytest.MonkeyPatch):
    from passes.prim_func import problems

    touched = problems._touched_ranges

    def shortened(*given):
        return {index: (begin, begin + 1) for index, (begin, _) in touched(*given).items()}

    monkeypatch.setattr(problems, "_touched_ranges", shortened)
    broken = 0
    for seed in range(5):
        try:
            replay(random_kernel(seed), EACH[2], seed)
        except OverwrittenError:
            broken += 1
    assert broken > 0


@pytest.mark.parametrize("case", sample(product(range(40), range(4)), (2, 1), (6, 3)))
def test_an_arena_computes_the_same_when_compiled(case: tuple[int, int]):
    seed, options = case[0], EACH[case[1]]
    mod = drawn(seed)
    np.testing.assert_equal(compiled(mod, options, seed), unplanned(mod, seed))


def allocations(func: tirx.PrimFunc) -> list[tirx.AllocBuffer]:
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func, (tirx.AllocBuffer, found.append))
    return found


@given(mod=kernels(), options=PLANS)
@settings(max_examples=3)
def test_addresses_are_within_the_memory(mod: tvm.IRModule, options: Options):
    note(mod.script())
    func = mod["main"]
    memory, plan = tightest(func, options)
    target = with_memory("llvm", memory)
    planned = AscendPlanMemory(target=target, budget=BUDGET, **options)(mod)
    found = allocations(planned["main"])
    for op in found:
        ty = op.buffer.ty
        slots = [int(address) for address in ty.allocated_addr]
        if str(ty.storage_scope) == "global.workspace":
            assert not slots
            continue
        size = int(ty.shape[0].value) * ty.dtype.dtype.bits // 8
        assert len(slots) >= int(op.annotations.get("multi_buffer", 1))
        for address in slots:
            assert address % 32 == 0
            assert 0 <= address <= memory[str(ty.storage_scope)].capacity - size
    # And nothing else has changed, but that what a loop carries stands before it.
    uses = [use for scope in plan.scopes for use in scope.attached.allocations.values()]
    expected = before_carrying_loops(func, uses)
    assert tvm_ffi.structural_equal(drop_addresses(planned["main"], SCOPES), expected)
    assert sum(len(scope.plan.offsets) for scope in plan.scopes) == sum(
        len(op.buffer.ty.allocated_addr) > 0 for op in found
    )


@given(mod=kernels(), reuse=st.booleans())
@settings(max_examples=6)
def test_the_workspace_is_as_large_as_it_says(mod: tvm.IRModule, reuse: bool):
    target = with_memory("llvm", ROOMY)
    plan = AscendPlanMemory(
        "global-work-space-plan", enable_global_workspace_reuse=reuse, target=target
    )
    planned = plan(mod)["main"]
    ends = [
        int(address) + int(op.buffer.ty.shape[0].value) * op.buffer.ty.dtype.dtype.bits // 8
        for op in allocations(planned)
        for address in op.buffer.ty.allocated_addr
    ]
    assert int(planned.attrs[WORKSPACE_BYTES]) == max(ends, default=0)


def steps_of(program: tuple[Step, ...]) -> Iterator[Step]:
    for step in program:
        yield step
        if isinstance(step, Loop):
            yield from steps_of(step.body)
        elif isinstance(step, Alternative):
            yield from steps_of((*step.then, *step.otherwise))


@given(mod=kernels())
@settings(max_examples=6)
def test_statements_speak_of_the_buffers_and_loops_of_the_problems(mod: tvm.IRModule):
    func = mod["main"]
    kernel = read_kernel(func, ROOMY)
    buffers = {buffer.name: buffer for problem in kernel.problems for buffer in problem.buffers}
    steps = list(steps_of(kernel.program))
    loops = [step.number for step in steps if isinstance(step, Loop)]
    assert loops == list(range(len(loops)))
    touched = {n for s in steps if isinstance(s, Statement) for n in (*s.reads, *s.writes)}
    assert touched == set(buffers)
    for step in steps:
        if isinstance(step, Loop):
            inside = [s for s in steps_of(step.body) if isinstance(s, Statement)]
            used = {n for s in inside for n in (*s.reads, *s.writes)}
            own = {n for n, b in buffers.items() if b.use is not None and b.use.loop == step.number}
            # Whoever takes turns with a loop is not used outside of it.
            outside = [s for s in steps if isinstance(s, Statement) and s not in inside]
            assert own <= used
            assert not own & {n for s in outside for n in (*s.reads, *s.writes)}
