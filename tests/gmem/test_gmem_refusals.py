# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` by hand: what it says of the rest, and what it refuses."""

from __future__ import annotations

import logging
import re

import pytest
import tvm
import tvm_ffi
from relax_programs import parse
from relax_runs import lower, planned
from small_modules import CHAIN, SYMBOLIC, SYMBOLIC_BODY, module, parsed, read, weights_module
from tvm import relax
from tvm.target import Target

import tvm_ext
from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.planning import Budget, Problem, register
from passes.planning import planner as planners
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.transform import GMEMAllocate


def test_one_warning_says_how_much_is_left_and_why(caplog: pytest.LogCaptureFixture):
    body = """
a = R.nn.relu(x)
b = R.call_packed("test.gmem.keep", a, ty_args=R.Tensor((64,), "float32"))
c = R.negative(b)
d = R.call_packed("test.gmem.keep", c, ty_args=R.Tensor((64,), "float32"))
e = R.sum(d)
return e
"""
    with caplog.at_level(logging.WARNING, logger="tvm_ext.GMEMAllocate"):
        planned(module(body), GMEMAllocate())
    (message,) = caplog.messages
    assert message.startswith("2 tensors are left to the runtime: passed to packed function")
    assert len(message) < 200


@pytest.mark.parametrize(
    ("params", "bounds", "message"),
    [
        (SYMBOLIC, {"batch": 4}, "upper bound of 'batch' names no symbolic dimension.*: m, n$"),
        ('x: R.Tensor((64,), "float32")', {"n": 4}, "'n' .* nothing here is symbolic"),
    ],
)
def test_a_bound_that_is_misspelt(params: str, bounds: dict[str, int], message: str):
    body = SYMBOLIC_BODY if params is SYMBOLIC else CHAIN
    refused(message, module(body, params), upper_bounds=bounds)


# --------------------------------------------------------------------------------------- bad input


def refused(message: str, lowered: tvm.IRModule, **options: object) -> None:
    before = tvm.IRModule(dict(lowered.functions))
    with pytest.raises(ValueError, match=message):
        GMEMAllocate("best", **options)(lowered)
    assert tvm_ffi.structural_equal(before, lowered, map_free_vars=True)


def test_a_module_that_is_not_lowered():
    mod, left = parsed(CHAIN), "has yet to be lowered"
    refused(f"function 'main': binding 'a': operator 'relax.nn.relu' {left}", mod)
    legalized = relax.transform.LegalizeOps()(mod)
    refused(f"function 'main': binding 'a': relax.call_tir {left}", legalized)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_bindings_that_are_names_of_each_other(names: tuple[str, ...]):
    ty = relax.TensorType((8,), "float32")
    x, out = relax.Var("x", ty), relax.Var("out", ty)
    ring = [relax.Var(name, ty) for name in names]
    bindings = [
        relax.VarBinding(one, relax.op.reshape(other, relax.ShapeExpr([8])))
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    bindings.append(relax.VarBinding(out, relax.op.reshape(ring[0], relax.ShapeExpr([8]))))
    func = relax.Function([x], relax.SeqExpr([relax.BindingBlock(bindings)], out), ty)
    refused(
        "function 'f': binding 'a': uses 'b', which is not defined on the way",
        tvm.IRModule({"f": func}),
    )


def test_a_variable_of_another_branch():
    ty = relax.TensorType((8,), "float32")
    x, c = relax.Var("x", ty), relax.Var("c", relax.TensorType((), "bool"))
    inner, out, late = (relax.Var(name, ty) for name in ("inner", "out", "late"))
    reshape = relax.op.reshape
    then = relax.SeqExpr(
        [relax.BindingBlock([relax.VarBinding(inner, reshape(x, relax.ShapeExpr([8])))])], inner
    )
    branches = relax.If(c, then, relax.SeqExpr([], x))
    bindings = [
        relax.VarBinding(out, branches),
        relax.VarBinding(late, reshape(inner, relax.ShapeExpr([8]))),
    ]
    func = relax.Function([x, c], relax.SeqExpr([relax.BindingBlock(bindings)], late), ty)
    refused(
        "function 'f': binding 'late': uses 'inner', which is not defined on the way",
        tvm.IRModule({"f": func}),
    )


def small(capacity: int) -> Target:
    scope = MemoryScope("global", capacity, alignment=64)
    return tvm_ext.with_memory("llvm", MemoryHierarchy((scope,)))


@pytest.mark.parametrize("capacity", [192, 448])
def test_tensors_above_the_capacity(capacity: int):
    refused(
        "GMEMAllocate: function 'main': scope 'global' needs 512 bytes as planned by 'best', "
        f"and has {capacity}\n  most is live at binding '_1', 512 bytes:\n    alloc: 256 bytes"
        r"(.|\n)*no plan needs less than 512 bytes; it is proven that no plan fits",
        module(CHAIN),
        target=small(capacity),
    )
    assert read(module(CHAIN), target=small(512)).plan.peak == 512


def test_weights_count_against_the_capacity():
    refused(
        "weight 'main.v.1.' needs bytes up to 4720, and .* 4096",
        weights_module(),
        target=small(4096),
    )
    refused(
        "function 'main': .* 'global' has 4992 bytes, and weights and callers take 4992",
        weights_module(),
        target=small(4992),
    )


def test_reserved_bytes_are_stepped_over():
    scope = MemoryScope(
        "global", 8192, alignment=64, base=1 << 20, reserved=((64, 128), (640, 704))
    )
    target = tvm_ext.with_memory("llvm", MemoryHierarchy((scope,)))
    lowered = module(CHAIN)
    for planner in ("rec_tbl", "first_fit"):
        found = plan_gmem(lowered, planner, GMEMOptions(target=target))[0]
        for tensor in found.layout.activations.tensors:
            begin = tensor.address - (1 << 20)
            for low, high in scope.reserved:
                assert max(begin, low) >= min(begin + tensor.size, high)
    refused(
        "the weights take .0x100000, 0x101380., and .0x100040, 0x100080. of memory scope 'global'",
        weights_module(),
        target=target,
    )


def test_a_base_that_is_not_aligned():
    refused(
        "the base of the weights, 0x64, is not a multiple of the alignment of 64",
        module(CHAIN),
        base=100,
    )
    refused(
        "the base of the weights, 0x1000, is not a multiple of the alignment of 8192",
        module(CHAIN),
        base=4096,
        alignment=8192,
    )


def test_a_bound_of_a_function_that_is_none():
    lowered = module(SYMBOLIC_BODY, SYMBOLIC, '"tir_var_upper_bound": {"n": 0}')
    refused("function 'main': the upper bound of 'n' must be .* at least 1, got 0", lowered)


def test_weights_at_the_chips_base_of_activations_are_refused():
    """A chip whose activations begin at 0, and weights that the caller puts there, too."""
    lowered = weights_module()
    with pytest.raises(ValueError, match=r"'main'.*weights take \[0x0, 0x\d+\).*activations"):
        GMEMAllocate(target="sophgo/cv181x", base=0)(lowered)
    GMEMAllocate(target="sophgo/cv181x", base=1 << 30)(lowered)


def test_a_wrong_plan_names_its_function_once(monkeypatch: pytest.MonkeyPatch):
    def on_one_another(problem: Problem, _budget: Budget) -> dict[str, tuple[int, ...]]:
        return {buffer.name: (0,) for buffer in problem.buffers}

    monkeypatch.setattr(planners, "_PLANNERS", dict(planners._PLANNERS))
    register("wrong")(on_one_another)
    with pytest.raises(ValueError, match=r"^GMEMAllocate: function 'main': plan of 'wrong' is"):
        GMEMAllocate("wrong")(lower(module(CHAIN)))


def test_a_dimension_without_a_bound_is_said_once(caplog: pytest.LogCaptureFixture):
    lowered = module(SYMBOLIC_BODY, SYMBOLIC)
    with caplog.at_level("WARNING", logger="tvm_ext.GMEMAllocate"):
        GMEMAllocate()(lowered)
    (record,) = caplog.records
    said = r"each new size of m \(axis \d of \w+\), n \(axis \d of \w+\); an upper bound, such as"
    assert re.search(said, record.getMessage())
    caplog.clear()
    with caplog.at_level("WARNING", logger="tvm_ext.GMEMAllocate"):
        GMEMAllocate(upper_bounds={"n": 8, "m": 8})(lowered)
    assert not caplog.records


COMPUTED = """
@R.function
def main(x: R.Tensor((64,), "float32"), s: R.Tensor((1,), "int64")):
    n = T.int64()
    shape = R.tensor_to_shape(s)
    _ = R.match_cast(shape, R.Shape([n]))
    a = R.broadcast_to(R.sum(x), R.shape([n]))
    b = R.sort(R.exp(a))
    c = R.cumsum(b)
    return R.cumsum(R.exp(c))
"""


def test_no_bound_is_asked_for_that_would_be_refused(caplog: pytest.LogCaptureFixture):
    """What a function computes itself, no caller can bound by a name."""
    mod = parse(COMPUTED)
    with caplog.at_level("WARNING", logger="tvm_ext.GMEMAllocate"):
        tvm.compile(mod, "llvm", relax_pipeline=tvm_ext.relax_pipeline("llvm"))
    said = [one.getMessage() for one in caplog.records if "each new size" in one.getMessage()]
    assert not any("upper_bounds" in line for line in said)
