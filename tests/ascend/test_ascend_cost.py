# SPDX-License-Identifier: Apache-2.0
"""From kernels to simulations: every kernel, and what plans of it cost."""

from __future__ import annotations

import math
from dataclasses import replace

import made_kernels
import pytest
from level_limit import plan_at_level
from sweeps import sample
from tvm.target import Target

from passes.ascend.kernel import AscendOptions, plan_cost
from passes.planning import solve
from passes.simulation import Cause, Loop, Statement, simulate
from target_hw import Machine, MemoryHierarchy
from tvm_ext.workloads.ascend import CHIP, ascend_kernels

MACHINE = Machine.from_target(Target(CHIP))


def lowered(name, size="fits", **parameters):
    return made_kernels.lowered(name, size, **parameters)[name]


def runs(steps, times=1):
    """Count the runs of each statement by hand."""
    for step in steps:
        if isinstance(step, Loop):
            yield from runs(step.body, times * step.extent)
        elif isinstance(step, Statement):
            yield times
        else:
            yield from max((list(runs(b, times)) for b in (step.then, step.otherwise)), key=sum)


@pytest.mark.parametrize("name", sample(ascend_kernels(), "gelu", "matmul"))
def test_a_kernel_that_fits_takes_as_long_as_one_that_shares_nothing(name):
    function = lowered(name)
    kernel = AscendOptions().read(function)
    free = simulate(kernel.program, [(p, solve(p, "bump")) for p in kernel.problems], MACHINE)
    found = plan_cost(function)
    assert free.waited(Cause.REUSE) == 0
    assert found.makespan == free.makespan
    assert found.waited(Cause.REUSE) == 0
    assert found.runs == sum(runs(kernel.program))
    assert found.makespan >= max(pipe.busy for pipe in found.pipes)


def test_what_a_transfer_and_a_product_take_is_bytes_and_multiply_adds_over_the_rates():
    kernel = made_kernels.made("matmul", "fits")
    size = dict(kernel.parameters)
    m, n, k = size["tile_m"], size["half_n"], 2 * size["tile_k"]
    halves = 2 * 2  # tiles and halves
    found = plan_cost(kernel.lower(f"{CHIP}-llvm")["matmul"])
    busy = {pipe.pipe: pipe.busy for pipe in found.pipes}
    products = halves * k // size["step_k"]
    assert busy["M"] == halves * m * n * k // 4096  # half precision
    a_bytes, b_bytes = 2 * m * size["step_k"], 2 * n * size["step_k"]
    assert busy["MTE1"] == products * (28 + a_bytes // 256 + 28 + b_bytes // 128)
    assert busy["FIX"] == halves * (20 + math.ceil(2 * m * n / 44))


def test_cube_and_vector_transfers_are_two_pipes_where_a_kernel_has_both():
    pipes = [pipe.pipe for pipe in plan_cost(lowered("matmul_add_relu")).pipes]
    assert {"MTE2 cube", "MTE2 vector"} <= set(pipes)
    assert "MTE2" in [pipe.pipe for pipe in plan_cost(lowered("gelu")).pipes]


def test_a_kernel_between_its_sizes_loses_nothing_at_level_1_and_much_at_level_0():
    # The tile is one for which level 2 does not fit, and level 1 does.
    kernel = AscendOptions().read(lowered("gelu", tile=14336, tiles=9))
    (problem,) = kernel.problems

    def makespan(plan):
        return simulate(kernel.program, [(problem, plan)], MACHINE).makespan

    assert not plan_at_level(problem, 2).fits
    in_step, lowest = plan_at_level(problem, 1), plan_at_level(problem, 0)
    assert in_step.fits
    assert 0 < in_step.penalty < lowest.penalty
    free = makespan(solve(problem, "bump"))
    assert makespan(in_step) <= 1.01 * free < 1.1 * free < makespan(lowest)


def test_the_machine_and_the_options_can_be_given():
    function = lowered("gelu", "lowest")
    found = plan_cost(function)
    assert found.waited(Cause.REUSE) > 0
    assert plan_cost(function, machine=MACHINE) == found
    slow = MACHINE.with_pipe(replace(MACHINE["MTE2"], rate=1))
    assert plan_cost(function, machine=slow).makespan > 2 * found.makespan
    memory = MemoryHierarchy.from_target(Target(CHIP))
    roomy = memory.with_scope(replace(memory["local.UB"], capacity=1 << 24))
    assert plan_cost(function, AscendOptions(memory=roomy)).makespan <= found.makespan


def test_without_a_target_there_is_nothing_to_go_by():
    bare = lowered("gelu").without_attr("target")
    with pytest.raises(ValueError, match="no machine is given"):
        plan_cost(bare)
