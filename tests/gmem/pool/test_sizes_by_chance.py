# SPDX-License-Identifier: Apache-2.0
"""Sizes without a bound at which a tensor has, by chance, the size of a storage that has ended."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from measured_memory import PAGE, watch
from relax_programs import parse
from relax_runs import STOCK, build, lower
from sweeps import sample
from tvm import relax
from vm_model import Blocks, Function, paths, pooled
from vm_reader import read_machine_function

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


# ----------------------------------------------------------------------- all sizes, in the model


def models(mod: tvm.IRModule) -> dict[str, Function]:
    """Return each function as the model of the virtual machine runs it."""
    functions = [v for v in mod.get_global_vars() if isinstance(mod[v], relax.Function)]
    return {str(v.name_hint): read_machine_function(mod, v, mod[v]) for v in functions}


def equal_pages(programs: dict[str, Function], bounds: dict[str, int]) -> Iterator[int]:
    """Yield where an allocation of unknown size begins and ceases to fill a constant one's pages.

    That is a search over all sizes; bytes are looked up by the model, not by the pass.
    """

    def pages(made: tuple[Function, int], size: int) -> int:
        function, number = made
        symbols = {key: bounds.get(name, size) for key, name in function.symbols.items()}
        return -(-function.storages[number](symbols) // PAGE)

    every = [(f, number) for f in programs.values() for number in range(len(f.storages))]
    constants = {pages(one, 1) for one in every if pages(one, 1) == pages(one, 1 << 30)}
    for one in every:
        for wanted in sorted(constants) if pages(one, 1) != pages(one, 1 << 30) else ():
            sizes = [0, 0]
            for at, least in enumerate((wanted, wanted + 1)):
                step = 1 << 29
                while step:
                    sizes[at] += step if pages(one, sizes[at] + step) < least else 0
                    step //= 2
            if sizes[0] < sizes[1]:
                yield from (sizes[0] + 1, sizes[1])


def check_every_size(lowered: tvm.IRModule, bounds: dict[str, int]) -> None:
    """Hold each path of each function, and all in turns, against the stock plan.

    One pool more is for calls of 1 to 64, one after the other.
    """
    stock, ours = models(STOCK(lowered)), models(GMEMAllocate()(lowered))
    sizes = {*range(1, 65), 100_003, *equal_pages(stock, bounds), *equal_pages(ours, bounds)}
    one_pool: tuple[Blocks, Blocks] = (Counter(), Counter())
    for size in sorted(sizes):
        of_size: tuple[Blocks, Blocks] = (Counter(), Counter())
        for name in stock:
            theirs, mine = (paths(each, name, bounds, 64, size) for each in (stock, ours))
            for path in theirs:
                assert pooled(mine[path]) <= pooled(theirs[path]), (name, size, path)
                for pools in (one_pool, of_size) if size <= 64 else (of_size,):
                    for pool, taken in zip(pools, (theirs[path], mine[path]), strict=True):
                        pool |= taken
        for pools in (one_pool, of_size):
            assert pooled(pools[1]) <= pooled(pools[0]), size


@pytest.mark.parametrize("scale", [1, 2])
def test_no_size_at_all_takes_more(scale: int):
    """At twice the size of a slice, logits are as large as the product that only stock frees."""
    text = re.sub(r"\b(32|64|128|256)\b", lambda found: str(int(found[1]) // scale), MODULE)
    check_every_size(lower(parse(text), fuse=True), {"n": 64 // scale})


_WIDTHS = (16, 48, 64, 128, 256)


def random_module(rng: random.Random) -> str:
    """Return functions in which tensors of constant sizes and of ``n`` rows take turns."""
    lines = ["@I.ir_module", "class Module:"]
    for number in range(rng.randint(1, 3)):
        rows = ["n", "64", *rng.choices(["n", "24", "64", "200"], k=rng.randint(0, 2))]
        params = (
            f'x{at}: R.Tensor(({count if count.isdigit() else repr(count)}, 64), "float32")'
            for at, count in enumerate(rows)
        )
        lines.append(f"    @R.function(pure=False)\n    def f{number}({', '.join(params)}):")
        lines.append("        n = T.int64()")
        made = [[(f"x{at}", 64)] for at in range(len(rows))]
        for step in range(rng.randint(6, 16)):
            stream = rng.choice(made)
            (name, width), kind = stream[-1], rng.choice(["tanh", "concat", "cut", "add"])
            other, its = rng.choice(stream[-3:])
            value = f"R.tanh({name})"
            if kind == "concat" and width < 600:
                value, width = f"R.concat(({name}, {other}), axis=1)", width + its
            elif kind == "cut" and width > 16:
                width = rng.choice([one for one in _WIDTHS if one < width])
                value = f"R.strided_slice({name}, axes=[1], begin=[0], end=[{width}])"
            elif kind == "add" and its == width:
                value = f"R.add({name}, {other})"
            stream.append((f"t{step}", width))
            lines.append(f"        t{step} = {value}")
        results = [stream[-1][0] for stream in made]
        whole = [rng.random() < 0.4 for _ in results]
        for at, name in enumerate(results):
            lines.append(f"        r{at} = R.{'exp' if whole[at] else 'sum'}({name})")
        lines.append(f"        return ({', '.join(f'r{at}' for at in range(len(results)))})")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", sample(range(60), *range(6)))
def test_random_modules_take_no_more_at_any_size(seed: int):
    check_every_size(lower(parse(random_module(random.Random(seed))), fuse=False), {})
