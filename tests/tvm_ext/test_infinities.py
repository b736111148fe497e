# SPDX-License-Identifier: Apache-2.0
"""Tensors full of an infinity, which TVM's own legalization refuses, are built and compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from tvm import relax, tirx
from tvm.relax import op

from tvm_ext.reading.torch_operators import as_pytorch_computes


def filled(value: float, dtype: str) -> tvm.IRModule:
    """A tensor of unknown size, the larger of it and of the value, and one full of the value."""
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x, fill = relax.Var("x", relax.TensorType((n, 4), dtype)), relax.const(value, dtype)
    with builder.function("main", [x]):
        with builder.dataflow():
            mask = builder.emit(op.full((n, 4), fill))
            made = [builder.emit(op.maximum(x, mask)), builder.emit(op.full_like(x, fill))]
            result = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan, 2.0])
def test_what_is_full_of_a_value_computes(value: float, dtype: str):
    mod = filled(value, dtype)
    mended = as_pytorch_computes(mod)
    tvm.ir.assert_structural_equal(mod, filled(value, dtype))  # The input stays as it is.
    assert ("R.full" in mended.script()) == np.isfinite(value)
    data = np.linspace(-4, 4, 12, dtype=dtype).reshape(3, 4)
    machine = relax.VirtualMachine(tvm.compile(mended, at_level("llvm")), tvm.cpu())
    larger, full = (result.numpy() for result in machine["main"](tvm.runtime.tensor(data)))
    np.testing.assert_array_equal(full, np.full_like(data, value))
    if not np.isnan(value):
        np.testing.assert_array_equal(larger, np.maximum(data, value))
