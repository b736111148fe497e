# SPDX-License-Identifier: Apache-2.0
"""Random loops, compiled at each level of optimisation, against the Python that they are."""

from __future__ import annotations

import importlib.util
import random
import sys
from itertools import product

import pytest
import tvm_ffi
from loop_programs import FIELDS, SIZE, LoopProgram
from sweeps import sample
from tvm import tirx

from passes.ir import loop_to_tir
from passes.planning.engine.compiled import _array

LEVELS = range(4)


def program(seed, folder):
    path = folder / f"loop_{seed}.py"
    path.write_text(LoopProgram(seed).text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(entry, level):
    target = {**loop_to_tir._TARGET, "opt-level": level}
    tirx.register_tir_pipeline(loop_to_tir._PIPELINE, loop_to_tir._pipeline)
    pipeline = loop_to_tir._PIPELINE
    return tirx.build(loop_to_tir.loop_module(entry), target=target, pipeline=pipeline)["entry"]


CASES = sample(product(range(200), LEVELS), (40, 0), (46, 1), (52, 2), (58, 3))


@pytest.mark.parametrize("case", CASES)
def test_a_random_loop_does_what_its_python_does(case, tmp_path):
    seed, level = case
    module = program(seed, tmp_path)
    run = compiled(module.entry, level)
    rng = random.Random(seed)
    for _ in range(12):
        arrays = [[rng.randint(-50, 50) for _ in range(SIZE)] for _ in FIELDS]
        numbers = rng.randint(0, SIZE), rng.randint(-9, 9), rng.randint(-9, 9)
        state = module.State(*map(list, arrays), numbers[0])
        module.entry(state, *numbers[1:])
        made = [_array(array) for array in arrays]
        run(*map(tvm_ffi.from_dlpack, made), *numbers)
        assert [array.tolist() for array in made] == list(map(list, state[:3]))


def test_one_array_may_stand_for_two_parameters_of_the_entry(tmp_path):
    """What is written by one name is read by the other, in vectors of elements too."""
    path = tmp_path / "two_names.py"
    path.write_text(
        "from collections.abc import MutableSequence\n\n\n"
        "def entry(one: MutableSequence[int], two: MutableSequence[int], count: int) -> None:\n"
        "    for at in range(count):\n"
        "        one[at + 1] = two[at] + one[0]\n"
    )
    spec = importlib.util.spec_from_file_location("two_names", path)
    module = sys.modules["two_names"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for level in LEVELS:
        plain, made = list(range(3, 12)), _array(list(range(3, 12)))
        module.entry(plain, plain, 8)
        tensor = tvm_ffi.from_dlpack(made)
        compiled(module.entry, level)(tensor, tensor, 8)
        assert made.tolist() == plain, level
