# SPDX-License-Identifier: Apache-2.0
"""Which bindings of a dataflow block keep their order: effects, views, checks, memory in place."""

from __future__ import annotations

import pytest
from relax_programs import parse

from passes.order.analysis.effects import runs_before
from passes.order.analysis.kept_bytes import blocks_of

KERNELS = """
    @T.prim_func(private=True, s_tir=True)
    def copy(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(64):
            y[i] = x[i]

    @T.prim_func(private=True, s_tir=True)
    def join(x: T.Buffer((64,), "float32"), z: T.Buffer((64,), "float32"),
             y: T.Buffer((64,), "float32")):
        for i in range(64):
            y[i] = x[i] + z[i]

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((64,), "float32"), z: T.Buffer((64,), "float32"),
              y: T.Buffer((64,), "float32")):
        for i in range(64):
            y[i] = x[i]

    @T.prim_func(private=True, s_tir=True)
    def overwrite(x: T.Buffer((64,), "float32")):
        for i in range(64):
            x[i] = x[i] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def draw(y: T.Buffer((64,), "float32")):
        for i in range(64):
            y[i] = T.call_packed("test.order.draw", i, dtype="float32")
"""


TYPE = 'out_ty=R.Tensor((64,), "float32")'


def before_of(body: str, attributes: str = "") -> dict[str, set[str]]:
    """Return for each binding of a block the names of all that have to run before it."""
    lines = "\n            ".join(line.strip() for line in body.strip().splitlines())
    last = lines.splitlines()[-1].split(" = ")[0].strip().split(":")[0]
    source = f"""
@I.ir_module
class Module:
{KERNELS}
    @R.function(private=True)
    def same(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        return x

    @R.function(private=True)
    def change(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        cls = Module
        return R.call_tir_inplace(cls.overwrite, (x,), inplace_indices=[0], {TYPE})

    @R.function
    def main(x: R.Tensor((64,), "float32"), z: R.Tensor((64,), "float32"),
             u: R.Tensor(("n",), "float32")):
        n = T.int64()
        {attributes}
        cls = Module
        with R.dataflow():
            {lines}
            R.output({last})
        return {last}
"""
    mod = parse(source, check_well_formed=False)
    (block,) = blocks_of(mod["main"])
    labels = [str(binding.var.name) for binding in block.bindings]
    found = [set(earlier) for earlier in runs_before(mod, block.bindings)]
    for number, earlier in enumerate(found):
        found[number] = earlier.union(*(found[other] for other in earlier))
    return {labels[at]: {labels[one] for one in earlier} for at, earlier in enumerate(found)}


def test_what_is_pure_waits_for_what_it_reads_alone():
    before = before_of(
        f"""
        a = R.call_tir(cls.copy, (x,), {TYPE})
        b = R.call_tir(cls.copy, (x,), {TYPE})
        c = (a, b)
        d = c[0]
        e = R.call_tir(cls.join, (b, z), {TYPE})
        f = R.call_tir(cls.join, (d, e), {TYPE})
        """
    )
    assert before["b"] == before["a"] == set()
    assert before["e"] == {"b"}
    assert before["d"] == {"a", "b", "c"}
    assert before["f"] == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize(
    "view", ["R.reshape(a, R.shape([64]))", f"R.call_tir(cls.first, (a, z), {TYPE})"]
)
def test_what_is_overwritten_is_read_on_the_same_side(view: str):
    before = before_of(
        f"""
        a = R.call_tir(cls.join, (x, z), {TYPE})
        free = R.call_tir(cls.join, (x, z), {TYPE})
        view = {view}
        reads = R.call_tir(cls.join, (a, x), {TYPE})
        over = R.call_tir_inplace(cls.overwrite, (view,), inplace_indices=[0], {TYPE})
        again = R.call_tir(cls.join, (a, z), {TYPE})
        last = R.call_tir(cls.join, (over, free), {TYPE})
        """
    )
    assert before["over"] >= {"a", "view", "reads"}
    assert "over" in before["again"]
    assert before["free"] == set()


@pytest.mark.parametrize(
    "call",
    [
        # An argument may be another one's memory.
        f"R.call_tir_inplace(cls.overwrite, (x,), inplace_indices=[0], {TYPE})",
        "cls.change(x)",
        'R.print(x, format="")',
    ],
)
def test_nothing_crosses_a_call_that_may_overwrite_or_is_not_pure(call: str):
    before = before_of(
        f"""
        a = R.call_tir(cls.copy, (z,), {TYPE})
        told = {call}
        b = R.call_tir(cls.copy, (z,), {TYPE})
        c = R.call_tir(cls.join, (a, b), {TYPE})
        """,
        'R.func_attr({"relax.force_pure": True})' if "print" in call else "",
    )
    assert before["told"] == {"a"}
    assert before["b"] == {"a", "told"}


@pytest.mark.parametrize(
    "call",
    [
        f"R.call_tir(cls.draw, R.tuple(), {TYPE})",
        f'R.call_dps_packed("test.order.draw", (x,), {TYPE})',
        'R.call_pure_packed("test.order.draw", x, ty_args=R.Tensor((64,), "float32"))',
        "cls.same(x)",
        'R.hint_on_device(x, R.device(1, 0), "global")',
    ],
)
def test_what_may_depend_on_a_state_keeps_its_order(call: str):
    before = before_of(
        f"""
        one = {call}
        pure = R.call_tir(cls.join, (x, z), {TYPE})
        two = {call}
        """
    )
    assert before == {"one": set(), "pure": set(), "two": {"one"}}


def test_a_dimension_is_known_before_it_is_used():
    before = before_of(
        """
        other = R.add(x, z)
        m = T.int64()
        checked = R.match_cast(u, R.Tensor((m,), "float32"))
        wide = R.zeros(R.shape([m, 4]), "float32")
        late = R.add(x, z)
        """
    )
    assert "checked" in before["wide"]
    assert "other" in before["checked"]
    assert "checked" in before["late"]
