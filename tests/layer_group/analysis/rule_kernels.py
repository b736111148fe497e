# SPDX-License-Identifier: Apache-2.0
"""Written kernels that each break one rule of LayerGroup, and some that all but break one."""

from __future__ import annotations

from written_kernels import ALL, MAKE_S, SHAPE, WORK, ZERO, kernel, nest


def with_buffer(what: str, *body: str) -> str:
    """A block with a working buffer ``Q``; it makes the result without it if nothing else is said.

    Parameters
    ----------
    what
        Of the buffer: its shape, its type, and more.
    body
        Statements.
    """
    result = f"O[{ALL}] = A[{ALL}] * T.float32(2)"
    return kernel(nest(ALL, [*(body or (result,))]), buffers=[f"Q = T.sblock_alloc_buffer({what})"])


def sum_over(
    loop: str, axis: str, *, init: str = f"O[{ALL}] = T.float32(1)", rows: str = ""
) -> str:
    """A sum over one variable, ``r``, of a loop, or of none."""
    axes = [*([rows] if rows else []), f"r = T.axis.{axis}"]
    value = f"O[{ALL}] * T.float32(2) + A[n, c, h, r % 4]"
    body = [f"O[{ALL}] = {value}"]
    return kernel(nest(ALL, body, loops=[loop] if loop else [], axes=axes, init=init))


def idle(extent: int) -> str:
    """A loop that nothing depends on."""
    return kernel(nest(ALL, [f"O[{ALL}] = A[{ALL}]"], loops=[f"e in range({extent})"]))


def truth_values() -> str:
    """A working buffer of truth values."""
    make = nest(ALL, [f"S[{ALL}] = A[{ALL}] > T.float32(1)"])
    use = nest(ALL, [f"O[{ALL}] = T.Select(S[{ALL}], A[{ALL}], T.float32(1))"])
    return kernel(make, use, buffers=[WORK.replace("float32", "bool")])


def wider() -> str:
    """A working buffer of wider elements than the result that replaces them."""
    make = nest(ALL, [f'S[{ALL}] = T.exp(T.Cast("float64", A[{ALL}]))'])
    use = nest(ALL, [f'O[{ALL}] = T.Cast("float32", S[{ALL}])'])
    return kernel(make, use, buffers=[WORK.replace("float32", "float64")])


def finite() -> str:
    """A call that TVM declares nothing of, and that has no effect."""
    value = f"T.Select(T.isfinite(A[{ALL}]), A[{ALL}], T.float32(1))"
    return kernel(nest(ALL, [f"O[{ALL}] = {value}"]))


def fewer_axes() -> str:
    """A working buffer of three axes."""
    make = nest("n, c, h", ["S[n, c, h] = A[n, c, h, 0] * T.float32(2)"])
    use = nest(ALL, [f"O[{ALL}] = A[{ALL}] + S[n, c, h]"])
    return kernel(make, use, buffers=['S = T.sblock_alloc_buffer((2, 2, 6), "float32")'])


def one_element() -> str:
    """A working buffer with an axis of one element, which is stored and read at 0."""
    place = "S[0, c, h, w]"
    make = nest("c, h, w", [f"{place} = A[0, c, h, w]", f"{place} = {place} * T.float32(2)"])
    use = nest(ALL, [f"O[{ALL}] = A[{ALL}] + {place}"])
    return kernel(make, use, buffers=['S = T.sblock_alloc_buffer((1, 2, 6, 4), "float32")'])


def stored_twice() -> str:
    """A working buffer that is stored twice."""
    make = nest(ALL, [f"S[{ALL}] = A[{ALL}]", f"S[{ALL}] = S[{ALL}] * T.float32(2)"])
    use = nest(ALL, [f"O[{ALL}] = S[{ALL}] + S[n, c, 5 - h, w]"])
    return kernel(make, use, buffers=[WORK])


def of_one_name() -> str:
    """Two blocks of one name, of which one only moves elements."""
    block = """for ln, lc, lh, lw in T.grid(2, 2, 6, 4):
    with T.sblock("block"):
        n, c, h, w = T.axis.remap("SSSS", [ln, lc, lh, lw])
        """
    use = "O[n, c, h, w] = S[n, c, h, w] + S[n, c, 5 - h, w]"
    return kernel(block + "S[n, c, h, w] = A[n, c, h, w]", block + use, buffers=[WORK])


def in_block(*lines: str, where: str = "") -> str:
    """A block with more to it than a body."""
    return kernel(nest(ALL, [*lines, f"O[{ALL}] = A[{ALL}] * T.float32(2)"], where=where))


DECLARED = (f"T.reads(A[{ALL}])", f"T.writes(O[{ALL}])")
OTHER = "n, c, 5 - h, w"
TALLER = '(2, 2, 7, 4), "float32"'
_SHARED_LOOP = """for ln in range(2):
    for lc, lh, lw in T.grid(2, 6, 4):
        with T.sblock("first"):
            n, c, h, w = T.axis.remap("SSSS", [ln, lc, lh, lw])
            S[n, c, h, w] = A[n, c, h, w]
    for lc, lh, lw in T.grid(2, 6, 4):
        with T.sblock("second"):
            n, c, h, w = T.axis.remap("SSSS", [ln, lc, lh, lw])
            O[n, c, h, w] = S[n, c, h, w] + S[0, c, h, w]"""

REFUSED = {
    "strides": (with_buffer(f'{SHAPE}, "float32", strides=[64, 32, 4, 1]'), "has strides"),
    "no elements": (with_buffer('(0, 4), "float32"'), "is not known, or empty"),
    "vectors": (with_buffer(f'{SHAPE}, "float32x4"'), "of type float32x4"),
    "parts of bytes": (with_buffer(f'{SHAPE}, "int4"'), "of type int4"),
    "results of two shapes": (
        with_buffer(TALLER, f"O[{ALL}] = A[{ALL}]", f"Q[{ALL}] = A[{ALL}]"),
        "does not write at its own place",
    ),
    "results at two places": (
        with_buffer(f'{SHAPE}, "float32"', f"O[{ALL}] = A[{ALL}]", f"Q[{OTHER}] = A[{ALL}]"),
        "does not write at its own place",
    ),
    "a part of a buffer": (
        with_buffer(TALLER, f"Q[{ALL}] = A[{ALL}]", f"O[{ALL}] = Q[{ALL}]"),
        "does not write one whole element at a time",
    ),
    "a diagonal of places": (
        kernel(
            nest("n, h, w", ["S[n, n, h, w] = A[n, 1, h, w]"]),
            nest(ALL, [f"O[{ALL}] = S[n, n, h, w]"]),
            buffers=[WORK],
        ),
        "does not write one whole element at a time",
    ),
    "a diagonal of loops": (
        kernel(nest("n, h, w", [f"O[{ALL}] = A[{ALL}]"], axes=["c = T.axis.spatial(2, ln)"])),
        "are scheduled",
    ),
    "a matched buffer": (
        in_block(
            *DECLARED, 'M = T.match_buffer(A[n, c, h, 0:4], (4,), "float32", offset_factor=1)'
        ),
        "matches buffers",
    ),
    "a buffer of its own": (
        in_block(*DECLARED, 'M = T.sblock_alloc_buffer((4,), "float32")'),
        "has buffers of its own",
    ),
    "never": (in_block(where="T.bool(False)"), "has a predicate"),
    "a pragma": (in_block('T.sblock_attr({"pragma_anything": 1})'), "has a pragma"),
    "one value of many": (sum_over("", "reduce(4, 0)"), "are scheduled"),
    "an idle loop": (idle(2), "are scheduled"),
    "a parallel loop": (sum_over("e in T.parallel(4)", "reduce(4, e)"), "are scheduled"),
    "a loop with more to it": (
        sum_over('e in T.serial(4, annotations={"pragma_anything": 1})', "reduce(4, e)"),
        "are scheduled",
    ),
    "a loop from one on": (sum_over("e in T.serial(1, 4)", "reduce(3, e)"), "are scheduled"),
    "a loop from a row on": (sum_over("e in T.serial(lh, lh + 4)", "reduce(4, e)"), "scheduled"),
    "a loop up to a row": (sum_over("e in T.serial(0, lh + 1)", "reduce(4, e)"), "scheduled"),
    "a step of a row": (sum_over("e in T.serial(0, 4, step=lh + 1)", "reduce(4, e)"), "scheduled"),
    "a shorter loop": (sum_over("e in range(3)", "reduce(4, e)"), "are scheduled"),
    "rows that are summed": (
        sum_over("e in range(4)", "reduce(4, e)", rows="h = T.axis.reduce(6, lh)"),
        "writes an element more than once",
    ),
    "the last of many": (
        sum_over("e in range(4)", "spatial(4, e)"),
        "writes an element more than once",
    ),
    "a sum from nothing": (
        sum_over("e in range(4)", "reduce(4, e)", init=""),
        "sums into what was there before",
    ),
    "a start that knows a summand": (
        sum_over("e in range(4)", "reduce(4, e)", init=f"O[{ALL}] = A[n, c, h, r]"),
        "uses 'r', which is not its own",
    ),
    "a read at another place": (
        in_block(f"O[{ALL}] = A[{ALL}]", f"O[{ALL}] = O[0, c, h, w]"),
        "at another place",
    ),
    "nothing": (kernel(nest(ALL, [f"v: T.let = A[{ALL}]"]), nest(ALL, [ZERO])), "writes nothing"),
    "no blocks": (
        kernel("for n, c, h, w in T.grid(2, 2, 6, 4):\n    O[n, c, h, w] = A[n, c, h, w]").replace(
            ", s_tir=True", ""
        ),
        "not in S-TIR with a root block",
    ),
    "a condition": (
        kernel(nest(ALL, [f"if A[{ALL}] > T.float32(1.5):", f"    O[{ALL}] = A[{ALL}]"])),
        "holds a IfThenElse",
    ),
    "a result in two blocks": (
        kernel(nest(ALL, [ZERO]), nest(ALL, [f"O[{ALL}] = A[{ALL}]"])),
        "a buffer is written by more than one block",
    ),
    "a buffer before it is made": (
        kernel(nest(ALL, [f"O[{ALL}] = S[{ALL}]"]), MAKE_S, buffers=[WORK]),
        "reads what a later block writes",
    ),
    "a buffer that is never made": (
        kernel(nest(ALL, [f"O[{ALL}] = S[{ALL}]"]), buffers=[WORK]),
        "reads what a later block writes",
    ),
    "a start of all": (
        kernel(
            "with T.sblock('root'):\n    T.reads()\n    T.writes()\n    with T.init():\n"
            "        A[0, 0, 0, 0] = T.float32(1)\n"
            + "\n".join(f"    {line}" for line in nest(ALL, [f"O[{ALL}] = A[{ALL}]"]).splitlines())
        ),
        "its root block has an initial statement",
    ),
    "a sum up to a row": (
        sum_over("e in T.serial(0, lh + 1)", "reduce(lh + 1, e)"),
        "the shape of block",
    ),
    "blocks in one loop": (kernel(_SHARED_LOOP, buffers=[WORK]), "blocks share a loop"),
}
"""Kernels, and what LayerGroup says of each where it leaves it alone."""
