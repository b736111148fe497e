# SPDX-License-Identifier: Apache-2.0
"""What is one statement of a pipeline's program, and what it reads and writes."""

from __future__ import annotations

import pytest
from ascend_modules import outline, pipelines, steps_of, uses
from program_text import program, programs
from test_first_writes import check

from passes.simulation import statements_of

KERNELS = programs("""
def nests(x: 512, y: 512, n: T.int32):
    acc: local.UB 64
    low, high: local.UB 8
    acc[i] = T.float32(0) for i in range(64)
    for _ in range(8):  # A perfect nest: one statement, though it is a loop over tiles.
        acc[i] = acc[i] + T.float32(1) for i in range(64)
    for i in range(8):  # Two results of one reduction.
        low[i] = T.float32(1000)
        high[i] = T.float32(-1000)
        for j in range(8):
            low[i] = T.min(low[i], acc[i * 8 + j])
            high[i] = T.max(high[i], acc[i * 8 + j])
    for i in range(64):  # A predicate, as of padding.
        if i < 32:
            acc[i] = acc[i] * T.float32(2)
        else:
            acc[i] = T.float32(0)
    if n > 3:  # A branch.
        y[i] = low[i] for i in range(8)
        y[i + 8] = high[i] for i in range(8)
    else:
        y[i] = acc[i] for i in range(64)
    for tile in range(8):  # Several computations.
        acc[i] = x[tile * 64 + i] for i in range(64)
        y[tile * 64 + i] = acc[i] for i in range(64)
    for _ in range(4):  # One computation, but memory of its own in each iteration.
        own: local.UB 8
        own[i] = low[i] for i in range(8)

def several(x: 64, y: 64, n: T.int32):
    a, b: local.UB 64
    for _ in range(2):  # Several computations in an inner loop.
        for t in range(8):
            a[i] = x[t * 8 + i] for i in range(8)
            b[i] = a[i] for i in range(8)
    for i in range(64):  # A value alone.
        v = T.bind(a[i])
    for i in range(64):  # What is stored first is loaded.
        a[i] = x[i]
        a[i] = a[i] * T.float32(2)
    for i in range(64):  # What is cleared is another buffer.
        a[i] = T.float32(0)
        b[i] = x[i]
    for i in range(64):  # A pipe is named.
        with T.attr({"pipe": "S"}):
            a[i] = T.float32(0)
        a[i] = a[i] + b[i]
    for i in range(64):  # A call clears.
        T.evaluate(T.call_extern("int32", "fill", a.access_ptr("w")))
        a[i] = a[i] + b[i]
    for _ in range(4):  # Two nests.
        a[i] = a[i] + T.float32(1) for i in range(64)
        b[i] = b[i] + T.float32(1) for i in range(64)
    for i in range(64):  # Two pipes in a branch.
        if i < n:
            a[i] = x[i]
            b[i] = a[i] * T.float32(2)
    for i in range(8):  # A nest in one branch, and in the other.
        if i < n:
            a[i * 8 + j] = T.float32(0) for j in range(8)
        else:
            a[i * 8] = T.float32(0)
        b[i] = T.float32(0)
    for i in range(8):
        if i < n:
            a[i * 8] = T.float32(0)
        else:
            a[i * 8 + j] = T.float32(0) for j in range(8)
        b[i] = T.float32(0)
    for i in range(64):  # A named pipe in a branch.
        if i < n:
            with T.attr({"pipe": "S"}):
                a[i] = T.float32(0)
    for i in range(64):  # Branches that write different buffers.
        if i < n:
            a[i] = T.float32(0)
        else:
            b[i] = T.float32(0)

def sums(x: 64, y: 8, n: T.int32):
    a, b, c: local.UB 64
    a[i] = x[i] for i in range(64)
    for i in range(8):
        for j in range(8):
            if j == 0:
                b[i] = a[i * 8]
            b[i] = T.max(b[i], a[i * 8 + j])
    for i in range(8):
        if i < n:
            a[i] = a[i] * T.float32(2)
        if i < 4:
            b[i] = b[i] * T.float32(2)
    with T.attr({"pipe": "V"}):
        for t in range(4):
            a[i] = a[i] + T.float32(1) for i in range(8)
            c[i] = a[i] for i in range(8)
        if n > 3:
            c[i] = b[i] for i in range(8)
    with T.attr({"pipe": "V"}):
        c[i] = T.float32(0) for i in range(8)
        if n > 3:
            a[i] = T.float32(0) for i in range(8)
        b[i] = T.float32(0) for i in range(8)
        c[i] = a[i] + b[i] for i in range(8)
    y[i] = c[i] for i in range(8)

def half_written(x: 64, y: 64, n: T.int32):
    acc, copied: local.UB 64
    acc[i] = x[i] for i in range(64)
    for i in range(64):
        if i < 32:
            acc[i] = T.float32(0)
        else:
            if i < n:
                acc[i] = T.float32(1)
        copied[i] = acc[i]
    y[i] = copied[i] for i in range(64)

def pointers(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    alias = T.decl_buffer((64,), "float32", data=a.data, scope="local.UB")
    T.evaluate(
        T.call_extern(
            "int32",
            "double_all",
            T.tvm_access_ptr(T.type_annotation("float32"), b.data, 0, 64, 2),
            T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 64, 1),
        )
    )
    y[i] = alias[i] + b[i] for i in range(64)

def addresses_of_elements(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "double_all", T.address_of(b[0]), T.address_of(a[0])))
    y[i] = b[i] for i in range(64)

def same_names(x: 64, y: 64):
    for _ in range(2):
        a: local.UB 64
        a[i] = x[i] for i in range(64)
        y[i] = a[i] for i in range(64)
    for _ in range(2):
        a: local.UB 64
        a[i] = x[i] + T.float32(1) for i in range(64)
        y[i] = a[i] for i in range(64)

def masked(x: 64, y: 64):
    for t in range(2):
        a, b: local.UB 32
        for i in range(8):
            a[T.Ramp(i * 4, 1, 4)] = T.masked_load(
                "float32x4", x, T.Ramp(t * 32 + i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
            )
        b[i] = a[i] + T.float32(1) for i in range(32)
        for i in range(8):
            T.evaluate(
                T.masked_store(
                    y,
                    b[T.Ramp(i * 4, 1, 4)],
                    T.Ramp(t * 32 + i * 4, 1, 4),
                    T.Broadcast(T.bool(True), 4),
                )
            )

def pointed(x: 64, y: 64):
    for t in range(2):
        a: local.UB 32
        for i in range(32):
            a[i] = T.call_pure_extern("float32", "f", x.access_ptr("r", extent=32))
        y[t * 32 + i] = a[i] for i in range(32)

def shown(x: 64, y: 64, n: T.int32):
    a: local.UB 64
    a[i] = x[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "show", a.access_ptr("r"), T.address_of(n)))

def filled(x: 64, y: 64):
    a: local.UB 64
    T.evaluate(T.call_extern("int32", "fill", a.access_ptr("w")))
    y[i] = a[i] for i in range(64)

def of_any_size(x: 64, y: 64, n: T.int32):
    T.func_attr({"tir_var_upper_bound": {"n": 6}})
    a: local.UB 64
    b = T.alloc_buffer((n,), "float32", scope="local.UB")
    a[i] = x[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "fill", b.data))

def said_by_a_variable(x: 32, y: 32, n: T.int32):
    a: local.UB 32
    T.evaluate(
        T.call_extern(
            "int32", "fill", T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 32, n)
        )
    )
    y[i] = a[i] + x[i] for i in range(32)

def loaded_before_it_is_written(x: 32, y: 32):
    a: local.UB 32
    for i in range(8):
        y[T.Ramp(i * 4, 1, 4)] = T.masked_load(
            "float32x4", a, T.Ramp(i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
        )
    a[i] = x[i] for i in range(32)
""")


def test_what_is_one_statement():
    steps = steps_of(KERNELS["nests"])
    branch = (("MTE3", "MTE3"), ("MTE3",))
    assert outline(steps) == ["V", "V", "V", "V", branch, [8, "MTE2", "MTE3"], [4, "V"]]
    assert [step.work for step in steps[:4]] == [64, 512, 128, 64]
    assert (steps[2].reads, steps[2].writes) == (("acc",), ("low", "high"))
    # Neither half of a predicate is sure to write, so what was there before counts.
    assert steps[3].reads == ("acc",)


def test_what_is_several_statements():
    assert outline(steps_of(KERNELS["several"])) == [
        [2, [8, "MTE2", "V"]],
        [64, "S"],
        [64, "MTE2", "S"],
        [64, "S", "MTE2"],
        [64, "S", "S"],
        [64, "V", "S"],
        [4, "V", "V"],
        [64, (("MTE2", "S"), ())],
        [8, (("V",), ("S",)), "S"],
        [8, (("S",), ("V",)), "S"],
        [64, (("S",), ())],
        [64, (("S",), ("S",))],
    ]


def test_what_a_condition_guards_is_work_where_nothing_else_is():
    _, largest, doubled, added, cleared, _ = steps_of(KERNELS["sums"])
    # The first step of a reduction is none, though it reads.
    assert (largest.pipe, largest.work) == ("V", 64)
    assert (doubled.pipe, doubled.work) == ("V", 16)
    assert (added.work, added.reads) == (4 * 16 + 8, ("a", "b"))
    assert cleared.work == 32
    assert "a" in cleared.reads  # It may have been left as it was.


def test_what_one_branch_may_leave_as_it_was_is_read():
    assert steps_of(KERNELS["half_written"])[1].reads == ("acc",)


def test_calls_and_aliases():
    load, call, store = steps_of(KERNELS["pointers"])
    assert (call.pipe, call.reads, call.writes, call.work) == ("V", ("a",), ("b",), 64)
    assert (store.pipe, store.reads) == ("MTE3", ("a", "b"))
    assert load.pipe == "MTE2"


def test_what_is_given_the_address_of_an_element_may_read_and_write_the_buffer():
    _, call, _ = steps_of(KERNELS["addresses_of_elements"])
    assert (call.pipe, call.reads, call.writes, call.work) == ("V", ("b", "a"), ("b", "a"), 64)
    assert uses(KERNELS["addresses_of_elements"])["a"].dma


def test_names_are_those_of_the_problems():
    found, made = pipelines(KERNELS["same_names"])
    names = [n for attached in found.problems for n in attached.allocations]
    assert [s.writes or s.reads for s in statements_of(made.program)] == [
        ("a",),
        ("a",),
        ("a.1",),
        ("a.1",),
    ]
    assert names == ["a", "a.1"]
    assert [use.loop for use in made.uses.values()] == [0, 1]


# Under a mask, and through pointers in a value


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("masked", [("MTE2", 128), ("V", 32), ("MTE3", 128)]),
        ("pointed", [("MTE2", 128), ("MTE3", 128)]),
        ("shown", [("MTE2", 256), ("S", 64)]),
        ("filled", [("V", 64), ("MTE3", 256)]),
        ("of_any_size", [("MTE2", 256), ("S", 1)]),
    ],
)
def test_they_are_transfers_where_plain_ones_would_be(name: str, made: list):
    found = list(statements_of(steps_of(KERNELS[name])))
    assert [(statement.pipe, statement.work) for statement in found] == made
    assert uses(KERNELS[name])["a"].dma


def test_a_pointer_for_what_a_variable_says_may_be_for_both():
    check(KERNELS["said_by_a_variable"])
    first = next(statements_of(steps_of(KERNELS["said_by_a_variable"])))
    assert first.reads == first.writes == ("a",)


def test_a_parameter_may_be_on_the_chip():
    func = program("""
    def main(p: T.handle, y: 64):
        x = T.match_buffer(p, (64,), "float32", scope="local.UB")
        a: local.UB 64
        a[i] = x[i] for i in range(64)
        y[i] = a[i] for i in range(64)
    """)
    assert outline(steps_of(func)) == ["V", "MTE3"]


def test_a_masked_load_reads():
    with pytest.raises(ValueError, match="error: read before first write"):
        check(KERNELS["loaded_before_it_is_written"])
