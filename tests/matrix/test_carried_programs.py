# SPDX-License-Identifier: Apache-2.0
"""What loops carry from round to round keeps its bytes in every form of a plan, built and run."""

from __future__ import annotations

import numpy as np
import tvm
from carried_programs import LENGTH, ROUNDS, SCOPES, NoValueError, drawn, module_of, result_of
from forms import APART, FORMS, Form
from hypothesis import assume, note
from hypothesis import strategies as st
from sweeps import swept
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


@swept(3, 1500, st.integers(0, 1 << 32), st.sampled_from(SCOPES))
def test_what_a_loop_carries_is_not_overwritten(number: int, scope: str):
    text = drawn(number)
    try:
        expected = result_of(text, GIVEN)
    except NoValueError:
        assume(False)
    mod = module_of(text, scope)
    note(mod.script())
    for name, form in PLANNED.items():
        if scope == "local.UB" or name != "address":  # TVM allows no views at an address elsewhere.
            np.testing.assert_array_equal(ran(mod, form), expected, err_msg=name)
    if scope == "global":
        planned = GMEMAllocate()(mod)
        np.testing.assert_array_equal(ran(planned, APART), expected, err_msg="GMEM")
