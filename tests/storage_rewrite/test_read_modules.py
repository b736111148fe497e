# SPDX-License-Identifier: Apache-2.0
"""The mirrored pass is TVM's for modules from Python, from text and from JSON.

What `tvm.ir.load_json` reads has type objects of its own, and lowering adds TVM's to them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

from passes.storage_rewrite.transform import StorageRewrite
from tvm_ext.lowering import capture

READ: dict[str, Callable[[tvm.IRModule], tvm.IRModule]] = {
    "python": lambda mod: mod,
    "text": lambda mod: tvm.script.from_source(mod.script(show_meta=True)),
    "json": lambda mod: tvm.ir.load_json(tvm.ir.save_json(mod)),
}


def network() -> tvm.IRModule:
    """Operators of which each is lowered to a kernel with temporaries in a chain."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.nn.gelu(x))
        scale = relax.const([1.0] * 64, "float32")
        builder.emit_func_output(builder.emit(relax.op.nn.rms_norm(y, scale, axes=[-1])))
    return builder.finalize()


def kernel() -> tvm.IRModule:
    """Blocks with temporaries in a chain, of one type and of two."""
    x = te.placeholder((4, 64), "float32", "x")
    chain = topi.tanh(topi.exp(topi.nn.relu(x)))
    rounded = topi.cast(topi.round(topi.multiply(chain, chain)), "int8")
    return tvm.IRModule({"main": te.create_prim_func([x, topi.cast(rounded, "float32") * chain])})


@pytest.mark.parametrize("way", READ)
@pytest.mark.parametrize("program", [network, kernel])
def test_is_the_stock_pass(program: Callable[[], tvm.IRModule], way: str) -> None:
    lowered = capture(READ[way](program()), "llvm")
    expected = tirx.transform.StorageRewrite()(lowered)
    actual = StorageRewrite()(lowered)
    assert not tvm_ffi.structural_equal(lowered, expected, map_free_vars=True)  # It has work to do.
    tvm.ir.assert_structural_equal(actual, expected, map_free_vars=True)
