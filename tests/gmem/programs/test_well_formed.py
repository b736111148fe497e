# SPDX-License-Identifier: Apache-2.0
"""What comes out is well formed, also where a type is not the one that follows from a shape."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import event, reject
from hypothesis import strategies as st
from relax_programs import Shape, Writer, parse
from relax_runs import build, run
from small_modules import placed, written_out
from sweeps import swept
from tvm import relax, tirx

from passes.gmem.relax_functions import plan_gmem
from passes.ir import nodes_in
from passes.planning import planner_names
from tvm_ext.transform import GMEMAllocate

PLANNERS = tuple(planner_names())
LOGGER = "tvm_ext.GMEMAllocate"

DTYPES = ("float32", "float16", "int8", "bool")

HEAD = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def kernel(source: T.handle, result: T.handle):
        T.evaluate(0)

    @R.function
    def main(
        x: R.Tensor(("n",), "float32"), shape: R.Shape(["m"]), c: R.Tensor((), "bool")
    ):
        R.func_attr({%s})
        n = T.int64()
        m = T.int64()
        cls = Module
"""


class LoweredWriter(Writer):
    """Writes what `CallTIRRewrite` leaves; `dims` are the sizes that there are where it stands."""

    dims: list[str]

    def allocate(self, depth: int, dim: str, ty: str | None, dtype: str) -> str:
        name = self.bind(depth, f'R.builtin.alloc_tensor(R.shape([{dim}]), R.dtype("{dtype}"), 0)')
        if ty is not None:
            self.lines[-1] = self.lines[-1].replace(f"{name} =", f"{name}: {ty} =", 1)
        return name

    def other_size(self, dim: str) -> str:
        return self.one_of(*(d for d in self.dims if d == dim or not (d + dim).isdigit()))

    def kernel(self, depth: int, known: dict[str, Shape], *_source: object) -> None:
        dim, dtype = self.one_of(*self.dims), self.one_of(*DTYPES)
        types = [f'R.Tensor(({d},), "{dtype}")' for d in (dim, self.other_size(dim))]
        name = self.allocate(
            depth, dim, self.one_of(None, *types, f'R.Tensor(dtype="{dtype}", ndim=1)'), dtype
        )
        if self.draw(st.integers(0, 7)):
            self.emit(depth, f"{name}_ = cls.kernel({self.pick(known)}, {name})")
        known[name] = NO_SHAPE

    def cast(self, depth: int, known: dict[str, Shape], source: str, *_shape: object) -> None:
        self.emit(depth, f"k{self.made} = T.int64()")
        size = f"k{self.made}"
        known[self.bind(depth, f"R.match_cast({source}, R.Tensor(({size},), None))")] = NO_SHAPE
        self.dims += [size, f"3 * {size}"]

    def alias(self, depth: int, known: dict[str, Shape], source: str, *_shape: object) -> None:
        known[self.bind(depth, f"R.memory.ensure_zero_offset({source})")] = NO_SHAPE

    def unlowered(self, depth: int, known: dict[str, Shape], source: str, *_shape: object) -> None:
        known[self.bind(depth, f"R.negative({source})")] = NO_SHAPE

    def branch(self, depth: int, known: dict[str, Shape], nesting: int) -> None:
        self.made += 1
        name, dim, dims = f"v{self.made}", self.one_of(*self.dims), list(self.dims)
        ty = f'R.Tensor(({self.other_size(dim)},), "float32")'
        for opening in ("if c:", "else:"):
            self.emit(depth, opening)
            inside, self.dims = dict(known), list(dims)
            self.steps(depth + 1, inside, self.draw(st.integers(1, 6)), nesting)
            made = self.allocate(depth + 1, dim, ty, "float32")
            self.emit(depth + 1, f"{made}_ = cls.kernel({self.pick(inside)}, {made})")
            self.emit(depth + 1, f"{name}: {ty} = {made}")
        self.dims = dims
        known[name] = NO_SHAPE


NO_SHAPE = ("", 0)


@st.composite
def lowered_sources(draw) -> str:
    """Draw a module whose function allocates its tensors, as `CallTIRRewrite` leaves it."""
    writer = LoweredWriter(draw, (*["kernel"] * 5, "cast", "alias", "unlowered"), {})
    writer.dims = ["n", "2 * n", "n + n", "n * m", "m", "6", "10"]
    known = {"x": NO_SHAPE}
    writer.kernel(2, known)
    writer.steps(2, known, draw(st.integers(1, 6)), 2)
    results = draw(st.lists(st.sampled_from(list(known)), min_size=1, max_size=2))
    attrs = ['"relax.force_pure": True']
    bounds = draw(st.sampled_from(["", '"n": 4', '"m": 9', '"n": 4, "m": 9']))
    if bounds:
        attrs.append(f'"tir_var_upper_bound": {{{bounds}}}')
    if draw(st.booleans()):
        attrs.append('"tir_var_lower_bound": {"n": 2}')
    end = f"        return ({', '.join(results)},)"
    return "\n".join([HEAD.strip("\n") % ", ".join(attrs), *writer.lines, end])


def types_of(mod: tvm.IRModule) -> dict[str, object]:
    """Return the type of the variable of each binding, by name."""
    found: dict[str, object] = {}

    def note(expr: object) -> None:
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                for binding in block.bindings:
                    found[str(binding.var.name)] = binding.var.ty

    relax.analysis.post_order_visit(mod["main"], note)
    return found


@swept(8, 2000, lowered_sources(), st.sampled_from(PLANNERS), st.booleans())
def test_what_comes_out_is_well_formed(source: str, planner: str, bound: bool):
    mod = tvm.script.from_source(source, check_well_formed=False)
    try:
        relax.analysis.well_formed(mod)
    except TypeError:
        reject()  # TVM can prove that a type contradicts its shape.
    before = tvm.IRModule(dict(mod.functions))
    pass_ = GMEMAllocate(planner, upper_bounds={"n": 5, "m": 7} if bound else None)
    ours = pass_(mod)
    relax.analysis.well_formed(ours)
    tvm.ir.assert_structural_equal(mod, before)
    ours_by_name = types_of(ours)
    for name, ty in types_of(mod).items():
        assert tvm_ffi.structural_equal(ours_by_name[name], ty, map_free_vars=True), name
    text = ours["main"].script()
    event(f"places tensors: {'R.memory.alloc_tensor' in text}")


IN_A_BRANCH = """
            {0} = T.int64()
            y = R.match_cast(x, R.Tensor(({0},), "float32"))
            a = R.builtin.alloc_tensor(R.shape([{0}]), R.dtype("float32"), 0)
            _ = cls.kernel(y, a)
            r = R.shape_of(a)
"""


def test_a_size_that_each_branch_finds_is_allocated_in_the_branch():
    branches = (f"        {w}:{IN_A_BRANCH.format(k)}" for w, k in (("if c", "k"), ("else", "j")))
    text = HEAD % '"relax.force_pure": True' + "".join(branches) + "        return r"
    mod = tvm.script.from_source(text, check_well_formed=False)
    # TVM lets both branches find one variable.
    one = next(var for var in nodes_in(mod["main"], tirx.Var) if var.name == "k")
    swap = [(tirx.Var, lambda var: one if var.name == "j" else var)]
    mod["main"] = tvm_ffi.structural_map(mod["main"], swap)
    relax.analysis.well_formed(mod)
    relax.analysis.well_formed(GMEMAllocate()(mod))


OTHER_TYPE = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def twice(a: T.handle, b: T.handle):
        rows = T.int64()
        x = T.match_buffer(a, (rows,), "float32")
        y = T.match_buffer(b, (rows,), "float32")
        for i in range(rows):
            y[i] = x[i] + x[i]

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        R.func_attr({"relax.force_pure": True, "tir_var_upper_bound": {"n": 4}})
        n = T.int64()
        cls = Module
        a: R.Tensor((n,), "float32") = R.builtin.alloc_tensor(
            R.shape([4]), R.dtype("float32"), 0)
        _ = cls.twice(x, a)
        b: R.Tensor((n,), "float32") = R.builtin.alloc_tensor(
            R.shape([4]), R.dtype("float32"), 0)
        _1 = cls.twice(a, b)
        c: R.Tensor((n,), "float32") = R.builtin.alloc_tensor(
            R.shape([4]), R.dtype("float32"), 0)
        _2 = cls.twice(b, c)
        return c
"""


def test_a_tensor_keeps_the_type_that_the_program_states():
    """The shape says 4 and the type says n: both stay, and the tensors are placed."""
    mod = parse(OTHER_TYPE)
    ours = GMEMAllocate()(mod)
    relax.analysis.well_formed(ours)
    (found,) = plan_gmem(mod)
    assert [buffer.size for buffer in found.memory.main.problem.buffers] == [16, 16]
    text = ours["main"].script()
    assert 'a: R.Tensor((n,), dtype="float32") = R.memory.alloc_tensor(storage' in text
    assert text.count("R.shape([4])") == 3
    x = np.arange(4, dtype="float32")
    (out,) = run(build(ours, None), "main", [x])
    np.testing.assert_array_equal(out, 8 * x)


PARTLY_LOWERED = written_out(
    """
a = twice(x)
b = twice(a)
late = R.negative(b)
d = twice(late)
e = twice(d)
return e
""",
    64,
)


def test_what_an_operator_reads_that_is_yet_to_be_lowered(caplog: pytest.LogCaptureFixture):
    mod = parse(PARTLY_LOWERED)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        ours = GMEMAllocate()(mod)
    relax.analysis.well_formed(ours)
    (found,) = plan_gmem(mod)
    assert list(placed(found).values()) == ["a", "d"]
    left = {tensor.name: tensor.reason for tensor in found.memory.left}
    assert left == {
        "b": "passed to operator 'relax.negative' by binding 'late'",
        "late": "operator 'relax.negative' has yet to be lowered",
        "e": "returned",
    }
    for name, reason in left.items():
        said = f"function 'main': {name!r} is left to the runtime: {reason}"
        assert caplog.messages.count(said) == 1
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    lowered = relax.transform.CallTIRRewrite()(relax.transform.LegalizeOps()(ours))
    x = np.arange(64, dtype="float32")
    (out,) = run(build(lowered, None), "main", [x])
    np.testing.assert_array_equal(out, -16 * x)


def test_one_function_is_lowered_and_one_is_not():
    other = """
    @R.function
    def late(x: R.Tensor((64,), "float32")):
        y = R.negative(x)
        return y
"""
    mod = parse(PARTLY_LOWERED + other)
    ours = GMEMAllocate()(mod)
    relax.analysis.well_formed(ours)
    late, main = plan_gmem(mod)
    assert late.memory.unlowered == late.memory.left
    assert list(placed(main).values()) == ["a", "d"]


def test_an_operator_that_is_yet_to_be_lowered_within_a_local_function():
    inner = PARTLY_LOWERED.replace(
        "        late = R.negative(b)\n",
        """
        @R.function(pure=False)
        def local(z: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
            made = R.negative(z)
            return made
        late = local(b)
""",
    )
    mod = parse(inner)
    relax.analysis.well_formed(GMEMAllocate()(mod))
    (found,) = plan_gmem(mod)
    left = {tensor.name: tensor.reason for tensor in found.memory.left}
    assert left["made"] == "operator 'relax.negative' has yet to be lowered"
    assert left["b"] == "passed to closure by binding 'late'"
