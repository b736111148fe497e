# SPDX-License-Identifier: Apache-2.0
"""What the virtual machine's pool takes: never more than with the stock plan."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from hypothesis import strategies as st
from measured_memory import Watch, functions_of, watch
from relax_programs import SIZES, SYMBOLIC, inputs_of, relax_sources, symbolic_sources
from relax_replay import Replay
from relax_runs import (
    STOCK,
    Machine,
    build_each,
    compiled_together,
    flat,
    lower_source,
    planned,
)
from small_modules import module
from sweeps import swept
from tvm import relax

from passes.gmem.allocations import allocations_of, storage_span
from passes.gmem.options import GMEMOptions
from passes.gmem.planning.pool import blocks_taken, bytes_of_blocks
from passes.gmem.relax_functions import FunctionPlan, plan_gmem
from passes.gmem.serving import served_memory
from passes.planning import Buffer, LiveRange
from passes.relax.facts import BufferBindings
from tvm_ext.transform import GMEMAllocate

Arguments = list[list[object]]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="tvm_ext.GMEMAllocate")


def is_right(mod: tvm.IRModule, sizes: dict[str, int]) -> bool:
    """Whether no path of a planned module loses bytes or uses a storage that is not there."""
    return all(is_right_on_all_paths(mod, name, sizes) for name in functions_of(mod))


def is_right_on_all_paths(mod: tvm.IRModule, name: str, sizes: dict[str, int]) -> bool:
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        path = list(pending.pop())
        given = iter(path)

        def take(path=path, given=given) -> bool:
            try:
                return next(given)
            except StopIteration:
                path.append(False)
                return False

        known = len(path)
        try:
            Replay(mod, name, take, sizes)()
        except AssertionError:
            return False
        pending += [(*path[:at], True) for at in range(known, len(path))]
    return True


def check(source: str, arguments: Arguments, sizes: list[dict[str, int]]) -> None:
    """Hold ours against stock where stock is right, and all against one another.

    One plan more, first, is made with the largest sizes as upper bounds. Of constant sizes, what is
    counted for the path of a call is what it takes.
    """
    lowered = lower_source(source)
    plans = {"ours": planned(lowered, GMEMAllocate())}
    (main,) = (plan for plan in plan_gmem(lowered) if plan.memory.name == "main")
    most = {name: max(size[name] for size in sizes) for name in sizes[0]}
    if most:
        bounded = planned(lowered, GMEMAllocate(upper_bounds=most))
        relax.analysis.well_formed(bounded)
        plans = {"bounded": bounded, **plans}
    try:
        stock = planned(lowered, STOCK)
    except tvm.error.InternalError:
        return  # An internal check of the stock pass, which then plans nothing.
    if is_right(stock, sizes[-1]):
        plans["stock"] = stock
    library = compiled_together(lowered, [*plans.values()])
    for given_ in arguments:
        found, results = [], []
        for at in range(len(plans)):
            # A machine keeps its last result, so each run has a machine of its own.
            one, result = run_once(Machine(library, f"plan{at}_"), given_)
            found.append(one)
            results.append(result)
        of_label = dict(zip(plans, found, strict=True))
        assert of_label["ours"].nbytes <= found[-1].nbytes, found
        if main.memory.has_all_allocations and not most:
            assert of_label["ours"].nbytes == counted(main, of_label["ours"].decisions)
        for one, result in zip(found, results, strict=True):
            assert one.decisions == found[-1].decisions
            np.testing.assert_equal(result, results[-1])


def counted(plan: FunctionPlan, decisions: list[bool]) -> int:
    """Return the bytes that we count for a call that decides so at each `if` that it meets."""
    memory, taken = plan.memory, iter(decisions)
    skipped: list[LiveRange] = []
    for at in sorted(memory.branches):
        if not any(begin <= at < end for begin, end in skipped):
            skipped.append(memory.branches[at][next(taken)])
    units = (1,) * (1 + len(memory.groups))
    made = allocations_of(memory, plan.placement, 0)
    return bytes_of_blocks(blocks_taken(made, units, skipped))


def run_once(machine: Machine, arguments: list[object]) -> tuple[Watch, list[np.ndarray]]:
    """Call the main function of a new machine; return what was seen, and the results."""
    results: list[np.ndarray] = []
    call = lambda: flat(machine["main"](*arguments))  # noqa: E731
    return watch(machine, lambda: results.extend(t.numpy().copy() for t in call())), results


# -------------------------------------------------------------------------------- what was above

CALL = """
@R.function(private=True)
def helper(h: R.Tensor((512, 512), "float32")) -> R.Tensor((1, 512), "float32"):
    a = R.exp(h)
    b = R.sum(a, axis=[0], keepdims=True)
    return b

@R.function
def main(x: R.Tensor((512, 512), "float32")):
    cls = Module
    a = R.exp(x)
    b = R.sum(a, axis=[0], keepdims=True)
    c = cls.helper(x)
    d = R.add(x, R.add(b, c))
    return d
"""

CALL_IN_WHAT_WAS_USED = """
@R.function(private=True)
def helper(
    h: R.Tensor((1, 1024), "float32"), k: R.Tensor((1024, 1), "float32")
) -> R.Tensor((1, 1), "float32"):
    return R.matmul(R.exp(h), R.exp(k))

@R.function
def main(x: R.Tensor((1, 1024), "float32"), y: R.Tensor((1024, 1), "float32")):
    cls = Module
    a = R.exp(x)
    b = R.negative(a)
    c = R.concat((b, a), axis=0)
    d = cls.helper(x, y)
    return R.add(d, R.sum(c))
"""

BRANCH = """
@R.function
def main(x: R.Tensor((512, 512), "float32")):
    m = R.max(x)
    c = R.greater(m, R.const(2, "float32"))
    if c:
        r = m
    else:
        a = R.exp(x)
        r = R.sum(a)
    return r
"""

NARROW = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 3), "float32")):
    a = R.nn.relu(x)
    b = R.nn.relu(y)
    c = R.negative(a)
    d = R.negative(b)
    e = R.sum(c, axis=[1], keepdims=True)
    f = R.sum(d, axis=[1], keepdims=True)
    g = R.add(e, f)
    return g
"""


SPLIT = """
@R.function
def main(x: R.Tensor(("n", 100), "float32")):
    a = R.nn.relu(x)
    b = R.nn.relu(x)
    c = R.split(a, 2, axis=1)
    d = R.split(b, 2, axis=1)
    return (c[0], d[0])
"""


@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (CALL, [(512, 512)]),
        (CALL_IN_WHAT_WAS_USED, [(1, 1024), (1024, 1)]),
        (BRANCH, [(512, 512)]),
    ],
)
def test_neither_a_call_nor_a_branch_is_paid_for_elsewhere(
    source: str, shapes: list[tuple[int, ...]]
):
    xs = [np.random.default_rng(0).random(shape, dtype="float32") for shape in shapes]
    arguments: Arguments = [[tvm.runtime.tensor(x + by) for x in xs] for by in (0, 9)]
    check(source, arguments, [{}, {}])


def test_of_too_many_paths_nothing_is_promised():
    body = ["a = R.exp(x)", "b = R.concat((a, a), axis=0)", "r0 = R.sum(R.concat((b, a), axis=0))"]
    for at in range(8):
        body += ["if c:", f"    r{at + 1} = R.negative(r{at})"]
        body += ["else:", f"    r{at + 1} = R.abs(r{at})"]
    params = 'x: R.Tensor((2048,), "float32"), c: R.Tensor((), "bool")'
    (found,) = plan_gmem(module("\n".join([*body, "return r8"]), params))
    pieces = [piece for pieces in found.placement for piece in pieces]
    assert {at for piece in pieces for at in piece.offsets.values()} == {0}
    assert "it has too many paths" in str(served_memory([found], GMEMOptions()))


@pytest.mark.parametrize(
    ("made", "path", "live", "end"),
    [
        (2, (), (2, 4), 4),
        (2, (), (2, 5), 20),  # The `if` itself reads it.
        (2, (), (2, 8), 20),
        (6, ((4, 0),), (6, 8), 8),
        (6, ((4, 0),), (6, 17), 20),  # The branch returns it.
        (2, (), (2, 17), 20),
        (16, (), (16, 18), 20),
    ],
)
def test_from_the_first_branch_of_a_sequence_on_nothing_is_given_back(made, path, live, end):
    memory = SimpleNamespace(branches={4: ((5, 9), (9, 14))}, bindings=("",) * 20)
    group = SimpleNamespace(uses={"t": BufferBindings("t", path, made, ())})
    assert storage_span(memory, group, [Buffer("t", 1, (live,))]) == (made, end)


BEHIND_BRANCHES = """
@R.function
def main(x: R.Tensor((32, 32), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")):
    a = R.exp(x)
    b = R.negative(a)
    if c:
        t = R.add(a, b)
        u = R.multiply(t, t)
        if d:
            w = R.exp(R.add(u, a))
        else:
            w = u
        r = R.subtract(w, b)
    else:
        r = R.multiply(R.multiply(a, x), b)
    s = R.exp(R.add(r, a))
    return (R.add(s, s), r)
"""


def test_what_lives_behind_branches_is_counted_as_the_pool_takes_it():
    x = tvm.runtime.tensor(np.ones((32, 32), "float32"))
    sides = [tvm.runtime.tensor(np.array(side)) for side in (True, False)]
    arguments: Arguments = [[x, c, d] for c in sides for d in sides]
    check(BEHIND_BRANCHES, arguments, [{}] * 4)


@pytest.mark.parametrize(("source", "widths"), [(NARROW, (4, 3)), (SPLIT, (100,))])
def test_tensors_of_unknown_sizes_take_no_more_pages(source: str, widths: tuple[int, ...]):
    rows = (1, 9, 100, 256, 257, 1000)
    arguments = [[tvm.runtime.tensor(np.ones((n, w), "float32")) for w in widths] for n in rows]
    check(source, arguments, [{"n": n} for n in rows])


# -------------------------------------------------------------------------------- random programs


@swept(2, 1200, st.data(), st.sampled_from([1, 40, 100, 1000]))
def test_programs_with_branches_and_calls_take_no_more(data: st.DataObject, rows: int):
    inputs = [(str(rows), size) for size in SIZES]
    source = data.draw(relax_sources(keeps=False, inputs=inputs))
    arguments: Arguments = [
        [tvm.runtime.tensor(array) for array in inputs_of(*ways, rows=rows)]
        for ways in ((1, 1), (1, 0), (0, 1), (0, 0))
    ]
    check(source, arguments, [{}] * len(arguments))


@swept(3, 800, symbolic_sources(jumps=True))
def test_programs_of_unknown_sizes_take_no_more(source: str):
    rng = np.random.default_rng(0)
    arguments: Arguments = []
    sizes = [{"n": n, "m": m} for n, m in ((1, 1), (9, 5), (200, 3), (1000, 2))]
    for index, size in enumerate(sizes):
        shapes = ((eval(rows, {}, size), columns) for rows, columns in SYMBOLIC)
        tensors = [tvm.runtime.tensor(rng.standard_normal(s, dtype="float32")) for s in shapes]
        ways = [tvm.runtime.tensor(np.array(bool(index & bit))) for bit in (1, 2)]
        arguments.append([*tensors, tvm.runtime.ShapeTuple([size["m"]]), *ways])
    check(source, arguments, sizes)


# ------------------------------------------------------------------------------------ other targets


RECURSIVE = """
@R.function
def main(x: R.Tensor((32, 32), "float32")) -> R.Tensor((32, 32), "float32"):
    cls = Module
    a = R.nn.relu(x)
    b = R.negative(a)
    d = R.abs(b)
    s = R.max(d)
    c = R.greater(s, R.const(2, "float32"))
    if c:
        e = R.multiply(x, R.const(0.5, "float32"))
        r = cls.main(e)
    else:
        r = R.add(x, x)
    return r
"""


def test_a_function_that_calls_itself_shares_as_stock_does():
    lowered = lower_source(RECURSIVE)
    ours, stock = planned(lowered, GMEMAllocate()), planned(lowered, STOCK)
    counts = [mod["main"].script().count("R.memory.alloc_storage") for mod in (ours, stock)]
    assert counts[0] == counts[1] > 0
    x = tvm.runtime.tensor(np.full((32, 32), 9, "float32"))
    found = [run_once(machine, [x]) for machine in build_each(lowered, GMEMAllocate(), STOCK)]
    assert found[0][0].nbytes == found[1][0].nbytes
    assert found[0][0].decisions == found[1][0].decisions
    np.testing.assert_array_equal(found[0][1], found[1][1])
