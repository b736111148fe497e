# SPDX-License-Identifier: Apache-2.0
"""Sizes without a bound at which a tensor has, by chance, the size of a storage that has ended."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from measured_memory import watch
from relax_programs import parse
from relax_runs import STOCK, build, lower

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
    machines = [build(lowered, plan) for plan in (STOCK, GMEMAllocate())]
    orders = (("verify",), ("verify", "prefill", "hidden"))
    taken: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for v in sizes:
        head = rng.standard_normal((32, v), dtype="float32") / 8
        for names in orders:
            both = []
            for machine in machines:
                found: list[np.ndarray] = []

                def run(machine=machine, found=found, names=names, head=head):
                    arguments = [*map(tvm.runtime.tensor, (*fixed, head))]
                    found += [machine[name](*arguments).numpy() for name in names]

                taken.setdefault((v, names), []).append(watch(machine, run).nbytes)
                both.append(found)
            np.testing.assert_equal(both[0], both[1])
    assert all(ours <= stock for stock, ours in taken.values()), taken
    if 128 in sizes:  # Stock's does serve the logits with what has ended.
        assert taken[128, ("verify",)][0] < taken[100, ("verify",)][0]
