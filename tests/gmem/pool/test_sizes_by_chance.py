# SPDX-License-Identifier: Apache-2.0
"""Sizes without a bound at which a tensor has, by chance, the size of a storage that has ended."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
import tvm
from measured_memory import PAGE, IdleMachine, allocations_in, functions_of, value_of
from relax_programs import ServedProgram, parse, served_programs
from relax_runs import STOCK, Machine, lower, under_each
from sweeps import swept

from tvm_ext.transform import GMEMAllocate

HEAD = """
    @R.function(pure=False)
    def {name}(x: R.Tensor(("n", 32), "float32"), w: R.Tensor((32, 256), "float32"),
               u: R.Tensor((128, 32), "float32"), head: R.Tensor((32, "v"), "float32")):
        n, v = T.int64(), T.int64()
        R.func_attr({{"tir_var_upper_bound": {{"n": 64}},
                      "relax.memory_plan_dynamic_func_output": 1}})
        y = R.tanh(x)
        a = R.matmul(y, w)
        b = R.strided_slice(a, axes=[1], begin=[0], end=[128])
        c = R.matmul(b, u)
        d = R.add(c, y)
        e = R.matmul(d, w)
        f = R.strided_slice(e, axes=[1], begin=[0], end=[128])
        g = R.matmul(f, u)
        h = R.add(g, d)
        {result}
"""
MODULE = "@I.ir_module\nclass Module:" + "".join(
    HEAD.format(name=name, result=result)
    for name, result in (
        ("verify", "return R.matmul(h, head)"),
        ("prefill", "return R.matmul(R.strided_slice(h, axes=[0], begin=[0], end=[1]), head)"),
        ("hidden", "return R.tanh(h)"),
    )
)


@pytest.mark.parametrize("sizes", [(100, 128), pytest.param((1, 32), marks=pytest.mark.slow)])
def test_no_size_of_a_vocabulary_takes_more(sizes: tuple[int, ...]):
    """At 128 the logits have as many bytes as the last slice, which has ended."""
    lowered = lower(parse(MODULE), fuse=True)
    rng = np.random.default_rng(0)
    shapes = ((64, 32), (32, 256), (128, 32))
    fixed = [rng.standard_normal(shape, dtype="float32") / 8 for shape in shapes]
    orders = (("verify",), ("verify", "prefill", "hidden"))
    taken: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for v in sizes:
        head = rng.standard_normal((32, v), dtype="float32") / 8
        for names in orders:

            def run(machine: Machine, names=names, head=head) -> list[np.ndarray]:
                arguments = [*map(tvm.runtime.tensor, (*fixed, head))]
                return [machine[name](*arguments).numpy() for name in names]

            taken[v, names], results = under_each(lowered, run, STOCK, GMEMAllocate())
            np.testing.assert_equal(*results)
    assert all(ours <= stock for stock, ours in taken.values()), taken
    if 128 in sizes:  # Stock's does serve the logits with what has ended.
        assert taken[128, ("verify",)][0] < taken[100, ("verify",)][0]


# ----------------------------------------------------------------- all sizes, without kernels


def storage_bytes(mod: tvm.IRModule, sizes: dict[str, int], default: int) -> list[int]:
    """Return the bytes of all that the functions of a planned module allocate at some sizes."""
    return [
        width * prod(value_of(extent, sizes, default) for extent in extents)
        for func in functions_of(mod).values()
        for width, extents in allocations_in(func)
    ]


def equal_pages(mod: tvm.IRModule, sizes: dict[str, int]) -> set[int]:
    """Return where an allocation of unknown size begins and ceases to have a constant one's pages.

    The dimension is what `sizes` has not; other unknown sizes are multiples of it.
    """
    pairs = [*zip(*(storage_bytes(mod, sizes, size) for size in (1, 2)), strict=True)]
    pages = {-(-one // PAGE) for one, two in pairs if one == two}
    grown = {one for one, two in pairs if one != two}
    ends = {(count - 1) * PAGE // one + 1 for one in grown for count in pages}
    ends |= {count * PAGE // one for one in grown for count in pages}
    return ends - {0}


def check_every_size(lowered: tvm.IRModule, *given: dict[str, int]) -> None:
    """Hold each function, and all in one pool, against the stock plan.

    Of each of the given values, one dimension has none: it gets every size that matters.
    """
    stock, ours = STOCK(lowered), GMEMAllocate()(lowered)
    names = list(functions_of(ours))
    machines = [IdleMachine(mod) for mod in (stock, ours)]
    for values in given:
        sizes = {1, 2, 7, 64, *equal_pages(stock, values), *equal_pages(ours, values)}
        for size in sorted(sizes):
            for some in (*([name] for name in names), names):
                theirs, mine = (one.apart(some, values, size) for one in machines)
                assert mine <= theirs, (values, size, some)


@pytest.mark.parametrize("scale", [1, 2])
def test_no_size_at_all_takes_more(scale: int):
    """At twice the size of a slice, logits are as large as the product that only stock frees."""
    text = re.sub(r"\b(32|64|128|256)\b", lambda found: str(int(found[1]) // scale), MODULE)
    check_every_size(lower(parse(text), fuse=True), {"n": 64 // scale})


KINDS = ("unary", "join", "cut", "binary")


@swept(5, 60, served_programs(("n",), KINDS, ("n", "24", "64", "200")))
def test_random_modules_take_no_more_at_any_size(program: ServedProgram):
    check_every_size(lower(parse(program.text), fuse=False), {})


@swept(5, 60, served_programs(("n", "m"), KINDS, ("n", "m", "24", "64", "200")))
def test_random_modules_of_two_dimensions_take_no_more_at_any_sizes(program: ServedProgram):
    """Here storages of one dimension may have the pages of those of another, too."""
    given = [{name: size} for name in ("n", "m") for size in (7, 300)]
    check_every_size(lower(parse(program.text), fuse=False), *given)
