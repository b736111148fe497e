# SPDX-License-Identifier: Apache-2.0
"""Random kernels compute the same under every plan, in memory as tight as it can be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from random import Random

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_replay import OverwrittenError, Replay
from address_runs import build, poisoned
from ascend_programs import FACTORS, LENGTH, ascend_plan, random_kernel
from made_kernels import asking_for, lowered
from sweeps import sample
from tvm import tirx
from tvm.ir.transform import Sequential
from tvm.target import Target

from passes.ascend.analysis.kernel_problems import CoreKernel, read_kernel
from passes.ascend.kernel import AscendOptions
from passes.ascend.transform import WORKSPACE_BYTES
from passes.driver import AddressPlan, write_address_plan
from passes.planning import Budget, Problem, lower_bound
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
EACH: list[Options] = [
    {"search": "search"},
    {"search": "mirror"},
    {"search": "mirror", "strategy": "largest-first"},
    {"degrade": True},
    {"restrict_inplace_as_isa": True},
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


def replay(mod: tvm.IRModule, plan: AddressPlan, seed: int, reuse: bool = True) -> None:
    """Run a kernel under a plan, step by step."""
    run = Replay(mod["main"], with_workspace(mod["main"], plan, reuse))
    run(inputs(seed))
    assert run.num_checked > 0


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


QUICK = ((0, 2), (1, 0), (3, 4), (4, 0), (5, 3), (7, 1))
"""Kernels and options that reach every level, take more slots and give some up."""


@pytest.mark.parametrize("cases", sample((QUICK, [*product(range(200), range(5))]), QUICK), ids=len)
def test_plans_of_random_kernels_are_right_in_tight_memory(cases: Sequence[tuple[int, int]]):
    levels, widened, lost = set(), 0, 0
    for seed, number in cases:
        print(f"seed {seed}, {EACH[number]}")
        mod = drawn(seed)
        memory, plan = tightest(mod["main"], EACH[number])
        replay(mod, plan, seed, reuse=bool(seed % 2))
        check_addresses(mod["main"], memory, plan)
        check_workspace(mod, reuse=bool(seed % 2))
        kernel = read_kernel(mod["main"], ROOMY)
        check_statements(kernel)
        asked = {b.name: b.slots for problem in kernel.problems for b in problem.buffers}
        for scope in plan.scopes:
            levels |= {reuse.level for reuse in scope.plan.reuse.values()}
            given = {name: len(offsets) for name, offsets in scope.plan.offsets.items()}
            widened += sum(given[b.name] > b.slots for b in scope.problem.buffers)
            fewer = sum(max(0, asked[name] - count) for name, count in given.items())
            assert not fewer or "degrade" in EACH[number]
            lost += fewer
    assert levels == {0, 1, 2}
    assert widened > 0
    assert lost > 0


def allocations(func: tirx.PrimFunc) -> list[tirx.AllocBuffer]:
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func, (tirx.AllocBuffer, found.append))
    return found


def check_addresses(func: tirx.PrimFunc, memory: MemoryHierarchy, plan: AddressPlan) -> None:
    """Check that addresses are within the memory, and that a plan changes nothing else."""
    planned = write_address_plan(func, plan, "address")
    found = allocations(planned)
    for op in found:
        ty = op.buffer.ty
        slots = [int(address) for address in ty.allocated_addr]
        if str(ty.storage_scope) == "global.workspace":
            assert not slots
            continue
        size = int(ty.shape[0].value) * ty.dtype.dtype.bits // 8
        for address in slots:
            assert address % 32 == 0
            assert 0 <= address <= memory[str(ty.storage_scope)].capacity - size
    # What a loop carries stands before it.
    uses = [use for scope in plan.scopes for use in scope.attached.allocations.values()]
    expected = before_carrying_loops(func, uses)
    assert tvm_ffi.structural_equal(drop_addresses(planned, SCOPES), expected)
    assert sum(len(scope.plan.offsets) for scope in plan.scopes) == sum(
        len(op.buffer.ty.allocated_addr) > 0 for op in found
    )


def check_workspace(mod: tvm.IRModule, reuse: bool) -> None:
    """Check that the workspace is as large as it says."""
    plan = AscendPlanMemory(
        "global-work-space-plan",
        enable_global_workspace_reuse=reuse,
        target=with_memory("llvm", ROOMY),
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


def check_statements(kernel: CoreKernel) -> None:
    """Check that statements speak of the buffers and loops of the problems."""
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


def test_the_replay_sees_a_life_that_ends_too_early(monkeypatch: pytest.MonkeyPatch):
    from passes.prim_func import problems

    touched = problems._touched_ranges

    def shortened(*given):
        return {index: (begin, begin + 1) for index, (begin, _) in touched(*given).items()}

    monkeypatch.setattr(problems, "_touched_ranges", shortened)

    def replay_some() -> None:
        for seed in range(5):
            mod = random_kernel(seed)
            replay(mod, tightest(mod["main"], EACH[2])[1], seed)

    with pytest.raises(OverwrittenError):
        replay_some()


@pytest.mark.parametrize("case", sample(product(range(40), range(5)), (2, 1), (9, 3)))
def test_an_arena_computes_the_same_when_compiled(case: tuple[int, int]):
    seed, options = case[0], EACH[case[1]]
    mod = drawn(seed)
    np.testing.assert_equal(compiled(mod, options, seed), unplanned(mod, seed))


# A kernel read with other numbers of slots is the one whose annotations ask for these


def facts(problem: Problem) -> tuple[object, ...]:
    """What a planner is told; handles of loops are not in it."""
    return (problem.buffers, problem.in_place, problem.separations, problem.penalties)


def compare(kernel: CoreKernel, random: Random) -> None:
    """Compare a kernel with other slots to the one that asks for them."""
    for number, problem in enumerate(kernel.problems):
        several = [b.name for b in problem.buffers if b.slots > 1 and b.pinned is None]
        chosen = {name: random.choice((1, 1, 2)) for name in several if random.random() < 0.7}
        statements = kernel.found.problems[number].allocations
        asked = {statements[name].statement.buffer.name: slots for name, slots in chosen.items()}
        expected = read_kernel(asking_for(kernel.func, asked), kernel.memory).problems[number]
        assert facts(kernel.with_slots(number, chosen)) == facts(expected)


@pytest.mark.parametrize("count", sample((5, 1000), 5))
def test_random_kernels_with_other_slots(count: int):
    for seed in range(count):
        print(f"seed {seed}")
        compare(read_kernel(random_kernel(seed)["main"], ROOMY), Random(seed))


@pytest.mark.parametrize("name", ["vector_add", "reduction"])
def test_kernels_with_single_buffers_alone(name: str):
    problems = {}
    for slots in (1, 2):
        (func,) = lowered(name, "fits", slots=slots).functions.values()
        problems[slots] = read_kernel(func, ROOMY)
    names = {b.name: 1 for b in problems[2].problems[0].buffers}
    assert facts(problems[2].with_slots(0, names)) == facts(problems[1].problems[0])


def test_a_narrowing_cast_may_be_in_place_once_it_has_no_more_slots_than_its_operand():
    (func,) = lowered("vector_add", "fits").functions.values()
    kernel = read_kernel(func, ROOMY)
    pair = ("total", "z_ub")
    assert pair not in kernel.problems[0].in_place
    assert pair in kernel.with_slots(0, {"z_ub": 1}).in_place
