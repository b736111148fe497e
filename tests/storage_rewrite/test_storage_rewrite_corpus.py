# SPDX-License-Identifier: Apache-2.0
"""The mirrored StorageRewrite against the stock pass, on functions of real programs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from corpus import Entry
from saved_json import CRASHES, saved_json
from statements import like_stock
from tvm import relax, te, tirx, topi

from tvm_ext.lowering import capture

_DATA = Path(os.environ.get("TVM_EXT_DATA", Path(__file__).parents[3] / "shared" / "data"))
_TVM_TESTS = _DATA / "storage_rewrite" / "tvm_tests.jsonl.gz"
_SAMPLE = 60


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_functions_of_the_tests_of_tvm(every: bool) -> None:
    if not _TVM_TESTS.exists():
        pytest.skip(f"{_TVM_TESTS} is not there; set TVM_EXT_DATA to the data folder")
    with gzip.open(_TVM_TESTS, "rt") as lines:
        functions = lines.readlines()
    step = 1 if every else max(1, len(functions) // _SAMPLE)
    for line in functions[::step]:
        function = json.loads(line)
        mod = tvm.ir.load_json(function["before"])
        like_stock(mod, function["config"], f"{function['id']} of {function['source']}")


def test_own_workloads(corpus: list[Entry]) -> None:
    assert corpus
    for entry in corpus:
        like_stock(entry.mod, entry.config, entry.name)


READ: dict[str, Callable[[tvm.IRModule], tvm.IRModule]] = {
    "python": lambda mod: mod,
    "text": lambda mod: tvm.script.from_source(mod.script(show_meta=True)),
    "json": lambda mod: tvm.ir.load_json(saved_json(mod)),
}
"""What `tvm.ir.load_json` reads has type objects of its own, and lowering adds TVM's to them."""


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
def test_modules_from_python_from_text_and_from_json(
    program: Callable[[], tvm.IRModule], way: str
) -> None:
    if CRASHES and way == "text" and program is network:
        pytest.skip("TVM's metadata of constants crashes with tvm-ffi 0.1.15")
    lowered = capture(READ[way](program()), "llvm")
    stock = tirx.transform.StorageRewrite()(lowered)
    assert not tvm_ffi.structural_equal(lowered, stock, map_free_vars=True)  # It has work to do.
    like_stock(lowered, {}, way)
