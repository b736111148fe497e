# SPDX-License-Identifier: Apache-2.0
"""What loops carry from round to round keeps its bytes in every form of a plan, built and run."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from carried_programs import LENGTH, ROUNDS, SCOPES, NoValueError, drawn, module_of, result_of
from forms import APART, FORMS, Form
from sweeps import sample
from tvm import tirx

from tvm_ext.transform import GMEMAllocate

PLANNED = {name: form for name, form in FORMS.items() if not form.mirrors}
GIVEN = np.arange(2, 2 + LENGTH, dtype="int32")


def ran(mod: tvm.IRModule, form: Form) -> np.ndarray:
    with form.within():
        built = tirx.build(mod, target=form.target or "llvm", pipeline=form.pipeline)
    result = tvm.runtime.tensor(np.zeros(LENGTH * ROUNDS * ROUNDS, "int32"))
    built["main"](tvm.runtime.tensor(GIVEN), result)
    return result.numpy()


def program(number: int) -> tuple[str, np.ndarray]:
    """Return the first program from a number on that has a result, and the result."""
    while True:
        text = drawn(number)
        try:
            return text, result_of(text, GIVEN)
        except NoValueError:
            number += 10_000_000


CASES = [
    (form, scope)
    for form in (*PLANNED, "GMEM")
    for scope in SCOPES
    # TVM allows no views at an address elsewhere, and a graph's memory is global.
    if form != {"local.UB": "GMEM", "global": "address"}[scope]
]

FIRST, LAST = dict(reversed(CASES)), dict(CASES)
BY_DEFAULT = [(form, (FIRST, LAST)[at % 2][form]) for at, form in enumerate(LAST)]


@pytest.mark.parametrize("count", [1, pytest.param(750, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", sample(CASES, *BY_DEFAULT))
def test_what_a_loop_carries_is_not_overwritten(case: tuple[str, str], count: int):
    form, scope = case
    for number in range(count):
        text, expected = program(number * len(CASES) + CASES.index(case))
        mod = module_of(text, scope)
        found = ran(GMEMAllocate()(mod), APART) if form == "GMEM" else ran(mod, PLANNED[form])
        np.testing.assert_array_equal(found, expected, err_msg=mod.script())
