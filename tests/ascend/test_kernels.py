# SPDX-License-Identifier: Apache-2.0
"""The Ascend kernels: what their sizes promise, that they lower, run and are right."""

from __future__ import annotations

from functools import cache

import made_kernels
import numpy as np
import pytest
import tvm
from address_runs import identity, num_arenas, poisoned
from kernel_facts import instructions
from made_kernels import TWIN, made, runs
from sweeps import sample
from tvm import tirx
from tvm.target import Target

from passes.planning import Problem, lower_bound
from passes.prim_func import FunctionProblems, ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy
from tvm_ext import workloads
from tvm_ext.transform import AscendPlanMemory, PlanAddresses
from tvm_ext.workloads.ascend import SIZES

MEMORY = MemoryHierarchy.from_target(Target("ascend/910b"))
NAMES = workloads.ascend_kernels()
QUICK = ("vector_add", "reduction", "matmul")
SAMPLE = sample(NAMES, *QUICK)
EACH = [
    pytest.param(name, size, marks=[] if name in QUICK else pytest.mark.slow)
    for name in NAMES
    for size in SIZES
]

VECTOR = {"MTE2", "V", "MTE3"}
CUBE = {"MTE2", "MTE1", "M", "FIX"}
PIPES = {
    "vector_add": VECTOR,
    "gelu": VECTOR,
    "reduction": VECTOR,
    "matmul": CUBE,
    "matmul_add_relu": CUBE | VECTOR,
    "flash_attention": CUBE | VECTOR | {"S"},
}


def lowered(name: str, size: workloads.ascend.Size) -> tirx.PrimFunc:
    return made_kernels.lowered(name, size)[name]


@cache
def problems(name: str, size: workloads.ascend.Size) -> FunctionProblems:
    return find_problems(lowered(name, size), ProblemOptions(memory=MEMORY))


def limited(name: str, size: workloads.ascend.Size) -> list[Problem]:
    """Return the problems that have a capacity."""
    found = (attached.problem for attached in problems(name, size).problems)
    return [problem for problem in found if problem.capacity is not None]


def total(problem: Problem) -> int:
    """Return the bytes of all buffers side by side."""
    aligned = (-(-b.size // problem.alignment_of(b)) for b in problem.buffers)
    return sum(
        units * problem.alignment_of(b) * b.slots
        for units, b in zip(aligned, problem.buffers, strict=True)
    )


def arena() -> tvm.transform.Pass:
    return poisoned(PlanAddresses("best", form="arena", target=TWIN))


# What the sizes promise


@pytest.mark.parametrize(("name", "size"), EACH)
def test_everything_is_planned_with_all_its_slots(name: str, size: workloads.ascend.Size):
    found = problems(name, size)
    assert not found.left_alone
    assert not found.remarks
    assert all(attached.problem.name in MEMORY for attached in found.problems)


@pytest.mark.parametrize("name", SAMPLE)
def test_sizes_fit_side_by_side_or_in_shared_bytes_or_not_at_all(name: str):
    for problem in limited(name, "fits"):
        assert total(problem) <= problem.capacity, problem.name
    for size in ("reuse", "lowest", "overflow"):
        assert any(total(p) > p.capacity for p in limited(name, size)), size
    assert any(lower_bound(p) > p.capacity for p in limited(name, "overflow"))
    with pytest.raises(ValueError, match=rf"function '{name}': scope 'local\.\w+' needs \d+ bytes"):
        PlanAddresses(target=TWIN)(made_kernels.lowered(name, "overflow"))


# What the kernels are made of


@pytest.mark.parametrize(("name", "size"), EACH)
def test_each_loop_nest_is_an_instruction_of_one_pipe(name: str, size: workloads.ascend.Size):
    assert {each.pipe for each in instructions(lowered(name, size))} == PIPES[name]


@pytest.mark.parametrize("name", SAMPLE)
def test_slots_are_a_parameter(name: str):
    for slots in (1, 3):
        function = made_kernels.lowered(name, "fits", slots=slots)[name]
        found = find_problems(function, ProblemOptions(memory=MEMORY)).problems
        assert max(b.slots for attached in found for b in attached.problem.buffers) == slots


def test_what_a_loop_carries_lives_through_it():
    (attached,) = problems("reduction", "fits").problems
    live = {buffer.name: buffer.live for buffer in attached.problem.buffers}
    for inner in ("row", "wide", "step", "distance"):
        for carried in ("total", "before"):
            assert live[carried][0][0] < live[inner][0][0]
            assert live[inner][0][1] < live[carried][0][1]


def test_kernels_describe_themselves():
    assert list(PIPES) == list(NAMES)
    assert all(NAMES.values())
    assert made("matmul", "overflow").parameters["tile_m"] == 96


@pytest.mark.parametrize("name", SAMPLE)
def test_building_twice_gives_the_same(name: str):
    first, second = made(name, "fits"), workloads.ascend_kernel(name)
    tvm.ir.assert_structural_equal(first.mod, second.mod)
    for a, b in zip(first.inputs(3), second.inputs(3), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(first.inputs(3), first.inputs(4), strict=True))


# That they run


@pytest.mark.parametrize("name", SAMPLE)
def test_equal_to_numpy_as_written(name: str):
    runs(name, "fits", identity())


@pytest.mark.parametrize("name", SAMPLE)
def test_equal_to_numpy_in_arenas(name: str):
    assert num_arenas(arena()(made_kernels.lowered(name, "lowest"))) == len(
        problems(name, "lowest").problems
    )
    runs(name, "lowest", arena())


def test_one_tile_needs_one_slot(caplog: pytest.LogCaptureFixture):
    """TVM takes away the loop of one iteration that would take turns with the slots."""
    runs("gelu", "fits", AscendPlanMemory(form="arena"), tiles=1)
    assert "buffer 'x_ub' in local.UB: no loop is around its allocation" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), EACH)
def test_equal_to_numpy_every_way(name: str, size: workloads.ascend.Size):
    runs(name, size, identity(), seed=1)
    runs(name, size, tirx.transform.StorageRewrite(), seed=1)
    if size != "overflow":
        runs(name, size, arena(), seed=1)
        runs(name, size, PlanAddresses("best", form="address", target=TWIN), seed=1)


# What is refused


def test_unknown_names_and_sizes():
    with pytest.raises(ValueError, match=r"unknown kernel 'matmull'; the kernels are .*matmul"):
        workloads.ascend_kernel("matmull")
    with pytest.raises(ValueError, match="'gelu': size must be one of fits, reuse, lowest, overf"):
        workloads.ascend_kernel("gelu", "huge")
    with pytest.raises(TypeError, match="'tail'"):
        workloads.ascend_kernel("gelu", tail=3)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("gelu", {"tile": 0}, "'gelu': tile must be a positive integer, got 0"),
        ("gelu", {"slots": "two"}, "'gelu': slots must be a positive integer, got 'two'"),
        ("matmul", {"step_k": 48}, "'matmul': tile_k must be a multiple of 48, got 64"),
        ("matmul_add_relu", {"rows": 48}, "tile_m must be a multiple of 48, got 64"),
        ("flash_attention", {"rows": 48}, "queries must be a multiple of 48, got 64"),
        ("reduction", {"rows": 1}, "'reduction': rows must be at least 2, got 1"),
    ],
)
def test_parameters_that_cannot_be(name: str, parameters: dict[str, int | str], message: str):
    with pytest.raises(ValueError, match=message):
        workloads.ascend_kernel(name, **parameters)
