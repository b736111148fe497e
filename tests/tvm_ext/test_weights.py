# SPDX-License-Identifier: Apache-2.0
"""Modules as they are built: what depends on weights alone is computed before the call."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
import tvm_ffi
from saved_json import saved_json
from tvm import relax
from tvm.relax.frontend import nn

import tvm_ext
from tvm_ext import workloads
from tvm_ext.weights import as_built, weight_tensors

LINEAR = """
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((2, 64), "float32"),
        w: R.Tensor((32, 64), "float32"),
        b: R.Tensor((32,), "float32"),
        v: R.Tensor((4, 32), "float32"),
    ) -> R.Tensor((2, 32), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            wt = R.permute_dims(w)
            half = R.multiply(wt, R.const(0.5, "float32"))
            y = R.matmul(x, half)
            row = R.reshape(b, (1, 32))
            both = R.split(v, 2, axis=0)
            first = both[0]
            n = R.arange(0, 2, 1, "float32")
            late = R.multiply(R.reshape(n, (2, 1)), first)
            z = R.add(R.add(R.add(y, row), first), late)
            R.output(z)
        return z
"""
CALLED = """
@I.ir_module
class Module:
    @R.function
    def half(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
        (8, 8), "float32"
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.matmul(x, R.permute_dims(w))
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
        (8, 8), "float32"
    ):
        R.func_attr({"num_input": 1})
        cls = Module
        with R.dataflow():
            t = R.permute_dims(w)
            y = cls.half(x, t)
            R.output(y)
        return y
"""


def values(parameters) -> list[tvm.runtime.Tensor]:
    rng, made = np.random.default_rng(0), []
    for one in parameters:
        shape = [int(size) for size in one.ty.shape]
        given = rng.integers(0, 9, shape) if "int" in str(one.ty.dtype) else rng.normal(size=shape)
        made.append(tvm.runtime.tensor(given.astype(str(one.ty.dtype))))
    return made


def with_bound_weights(mod: tvm.IRModule) -> tvm.IRModule:
    func = mod["main"]
    weights = func.params[int(func.attrs["num_input"]) :]
    bound = {str(one.name): value for one, value in zip(weights, values(weights), strict=True)}
    return relax.transform.BindParams("main", bound)(mod)


def planned(mod: tvm.IRModule) -> list[tuple[str, int, int, int]]:
    """Return the number of tensors and the bytes of two plans, of fused and unfused operators."""
    found = [v for v in tvm_ext.compare(mod, "best").memories if v.name.startswith("tensors, ")]
    assert found
    return [
        (v.name, len(v.problem.buffers), *(v.plan_of(n).plan.peak for n in ("stock", "best")))
        for v in found
    ]


def test_what_depends_on_weights_alone_is_a_parameter():
    mod = tvm.script.from_source(LINEAR)
    before, built = mod.script(), as_built(mod)
    assert mod.script() == before
    relax.analysis.well_formed(built)
    assert [str(one.name) for one in built["main"].params] == ["x", "half", "row", "first"]
    assert weight_tensors(mod) == (("main", 3, 2 * 64 * 32 * 4 + 2 * 2 * 32 * 4),)
    assert as_built(built) is built


def test_weights_of_one_module_have_names_of_their_own():
    """TVM binds parameters by name, and refuses a function in which two have the same."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            self.query = nn.Parameter((16, 8), "float32")
            self.key = nn.Parameter((16, 8), "float32")

        def forward(self, x):
            query, key = (nn.op.matmul(x, w.permute_dims(1, 0)) for w in (self.query, self.key))
            return nn.op.softmax(query * key)

    class Network(nn.Module):
        def __init__(self) -> None:
            self.attn = Attention()

        def forward(self, x):
            return self.attn(x)

    mod, _ = Network().export_tvm({"forward": {"x": nn.spec.Tensor((4, 8), "float32")}})
    func = as_built(mod)["forward"]
    names = [str(one.name) for one in func.params]
    assert names == ["x", "attn.permute_dims", "attn.permute_dims_1"]
    bound = dict(zip(names[1:], values(func.params[1:]), strict=True))
    assert len(relax.transform.BindParams("forward", bound)(as_built(mod))["forward"].params) == 1


def test_the_bytes_are_those_of_bound_weights():
    mod = tvm.script.from_source(LINEAR)
    assert planned(mod) == planned(with_bound_weights(mod))


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.NETWORKS)
def test_networks_take_the_bytes_of_bound_weights(name):
    mod = workloads.model(name)
    found, bound = planned(mod), planned(with_bound_weights(mod))
    # Some tensors of a few bytes, which are made when operators are lowered, may be left.
    assert [one[2:] for one in found] == [one[2:] for one in bound]


def test_only_what_no_caller_gives_is_taken_out():
    mod = tvm.script.from_source(CALLED)
    built = as_built(mod)
    assert [one.function for one in weight_tensors(mod)] == ["main"]
    assert tvm_ffi.structural_equal(built["half"], mod["half"])
    assert len(list(built["main"].body.blocks[0].bindings)) == 1


def test_a_weight_that_gives_a_size_to_others_stays():
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "float32"), w: R.Tensor(("m", 4), "float32")):
        R.func_attr({"num_input": 1})
        m = T.int64()
        with R.dataflow():
            s = R.sum(w)
            a = R.full(R.shape([m, 4]), s, "float32")
            b = R.exp(R.add(a, x))
            R.output(b)
        return b
""")
    assert [str(one.name) for one in as_built(mod)["main"].params] == ["x", "w", "s"]
    (view,) = tvm_ext.compare(mod, "best").memories  # Fused, there is only the result.
    assert view.unit == "m"


def test_the_pipeline_says_what_each_call_computes_and_lifts_it(caplog):
    mod = tvm.script.from_source(LINEAR)
    given = values(mod["main"].params)
    with caplog.at_level(logging.WARNING, "tvm_ext.relax_pipeline"):
        executable = tvm.compile(mod, "llvm", relax_pipeline=tvm_ext.relax_pipeline("llvm"))
    (said,) = (record.getMessage() for record in caplog.records)
    assert "function 'main': 3 tensors are computed from weights alone in each call" in said
    assert "lift_weights=True" in said
    machine = relax.VirtualMachine(executable, tvm.cpu())
    expected = machine["main"](*given).numpy()
    caplog.clear()
    pipeline = tvm_ext.relax_pipeline("llvm", lift_weights=True)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline), tvm.cpu())
    weights = machine["main_transform_params"](given[1:])
    np.testing.assert_array_equal(machine["main"](given[0], *weights).numpy(), expected)
    assert not caplog.records


def test_the_comparison_says_what_it_leaves_out(tmp_path):
    mod = tvm.script.from_source(LINEAR)
    path = tmp_path / "linear.json"
    path.write_text(saved_json(mod))
    for what in (mod, str(path)):
        found = tvm_ext.compare(what, "best")
        (note,) = (one for one in found.notes if "weights alone" in one)
        fused = [one for one in found.memories if one.name == "tensors, fused"]
        after = sum(one.plan_of("best").plan.peak for one in fused)  # One kernel: no tensors.
        assert f", {after:,} without (fused)" in note
        before = int(note.split(" bytes with them")[0].split()[-1].replace(",", ""))
        assert before >= after + 64 * 32 * 4  # One copy at least is live at the peak.
    assert not any(
        "weights alone" in one for one in tvm_ext.compare(with_bound_weights(mod), "best").notes
    )
