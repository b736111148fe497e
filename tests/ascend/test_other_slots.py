# SPDX-License-Identifier: Apache-2.0
"""A kernel read with other numbers of slots is the kernel whose annotations ask for these."""

from __future__ import annotations

from random import Random

import pytest
from ascend_programs import random_kernel
from made_kernels import asking_for, lowered
from sweeps import sample
from test_ascend_properties import ROOMY

from passes.ascend.analysis.kernel_problems import CoreKernel, read_kernel
from passes.planning import Problem


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
