# SPDX-License-Identifier: Apache-2.0
"""Kernels that hand planned memory to calls by pointers of its type, built and run."""

from contextlib import AbstractContextManager

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from tvm import tirx

import tvm_ext

TYPES = (("float32", "float32"), ("int64", "float32"), ("float16", "float32"), ("int8", "int32"))

KERNEL = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((36,), "{0}"), O: T.Buffer((36,), "{1}")):
    x = T.alloc_buffer((36,), "{0}", scope="local.UB")
    y = T.alloc_buffer((36,), "{0}", scope="local.UB")
    z = T.alloc_buffer((36,), "{1}", scope="local.UB")
    for i in range(36):
        x[i] = A[i] + T.{0}(1)
    T.evaluate(
        T.call_extern(
            "handle", "memmove", y.access_ptr("w"), x.access_ptr("r"), T.int64({2})
        )
    )
    for i in range(36):
        z[i] = T.Cast("{1}", y[35 - i])
    for i in range(36):
        O[i] = z[i]
"""

WAYS = {
    "addresses in an arena": (lambda: tvm_ext.use_plan_addresses(form="arena"), "llvm"),
    "addresses": (lambda: tvm_ext.use_plan_addresses(form="address"), "llvm"),
    "ascend": (lambda: tvm_ext.use_ascend_plan_memory(form="arena"), "ascend/910b-llvm"),
    "sound": (lambda: tvm_ext.use_storage_rewrite(sound=True), "llvm"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("given", "made"), TYPES)
def test_a_tensor_intrinsic_gets_its_operands_by_access_ptr(given: str, made: str, way: str):
    within, target = WAYS[way]
    size = np.dtype(given).itemsize * 36
    mod = tvm.IRModule({"main": tvm.script.from_source(KERNEL.format(given, made, size))})
    replaced: AbstractContextManager[None] = within()
    with replaced:
        built = tirx.build(mod, target=at_level(target))
    x, result = np.arange(36).astype(given), tvm.runtime.tensor(np.zeros(36, made))
    built["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), (x + 1)[::-1].astype(made))
