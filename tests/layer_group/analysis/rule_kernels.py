# SPDX-License-Identifier: Apache-2.0
"""Written kernels that each break one rule of LayerGroup, and some that all but break one."""

from __future__ import annotations

import written_kernels as written
from written_kernels import ALL, HALF, MAKE_S, SHAPE, WORK, WORK_R, ZERO, kernel, nest, sum_over


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


def idle(extent: int) -> str:
    """A loop that nothing depends on."""
    return kernel(nest(ALL, [f"O[{ALL}] = A[{ALL}]"], loops=[f"e in range({extent})"]))


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

FIRST = "S[0, c, h, w]"
ONE_NAME = """for ln, lc, lh, lw in T.grid(2, 2, 6, 4):
    with T.sblock("block"):
        n, c, h, w = T.axis.remap("SSSS", [ln, lc, lh, lw])
        """
"""A block of one name with others, of which one only moves elements."""

TAKEN = {
    "a window": written.plain(1),
    "two stores": written.stores(written.STATEMENTS[0], written.STATEMENTS[1:2]),
    "an initial value and one summand": written.summed(1, written.HALF, written.HALF),
    "an initial value that is read": written.summed(3, written.AT_S, written.AT_S),
    "loops swapped": written.ordered("qp", "pq"),
    "variables swapped": written.ordered("pq", "qp"),
    "rows in no order": written.along("h * 5 % 6", ""),
    "rows in no order, one in two": written.along("(h * h) % 6", "h % 2 == 1"),
    "rows of a number that wraps": written.along(written.WRAPPED, ""),
    "rows of which one needs many": written.along("T.if_then_else(h == 1, 5, h)", ""),
    "rows swapped on the way": written.detour(written.SWAPPED),
    "rows along the batch too": written.MIXED,
    "rows of a quotient of floats": written.along(
        "T.Cast('int32', T.Cast('float32', h) / T.float32(2) + T.float32(2.5))", ""
    ),
    "rows of an operation that is not known": written.along(
        "T.Cast('int32', T.sqrt(T.Cast('float32', h)))", ""
    ),
    "two axes": kernel(
        MAKE_S.replace("A[n, c", "A[c, n"),
        nest(ALL, [f"R[{ALL}] = S[{ALL}] * A[c, n, h, w]"]),
        nest(ALL, [f"O[{ALL}] = R[{ALL}] + A[{ALL}]"]),
        buffers=[WORK, WORK_R],
    ),
    "two results of one operand": kernel(
        MAKE_S,
        nest(ALL, [f"v: T.let = S[{ALL}]", f"R[{ALL}] = v * {HALF}", f"O[{ALL}] = R[{ALL}] - v"]),
        buffers=[WORK, WORK_R],
    ),
    "columns that are not needed": kernel(
        MAKE_S.replace("A[n, c, h, w]", "A[n, c, T.max(h - 1, 0), w]"),
        nest(ALL, [f"R[{ALL}] = S[n, c, h, T.max(w - 1, 0)] * {HALF}"]),
        nest(ALL, [f"O[{ALL}] = T.if_then_else(w < 2, R[{ALL}], {HALF})"]),
        buffers=[WORK, WORK_R],
    ),
    "the last of many summands": kernel(
        MAKE_S,
        nest(
            ALL,
            [f"O[{ALL}] = S[{ALL}] * T.Cast('float32', r + 2)"],
            loops=["e in range(3)"],
            axes=["r = T.axis.reduce(3, e)"],
            init=f"v: T.let = A[{ALL}]",
        ),
        buffers=[WORK],
    ),
    "fewer elements": kernel(
        MAKE_S,
        nest("n, h, w", ["R[n, 0, h, w] = S[n, 1, h, w] * T.float32(2)"]),
        nest(ALL, [f"O[{ALL}] = R[n, 0, h, w] + {HALF}"]),
        buffers=[WORK, WORK_R.replace("2, 6", "1, 6")],
    ),
    "bindings": written.bindings(2),
    "a block that declares nothing": written.undeclared("computes"),
    "a table": written.looked_up("uint8"),
    "loops of one": sum_over("e in T.serial(0, 1, step=1)", "spatial(1, e)"),
    "an idle loop of one": idle(1),
    "truth values": kernel(
        nest(ALL, [f"S[{ALL}] = A[{ALL}] > T.float32(1)"]),
        nest(ALL, [f"O[{ALL}] = T.Select(S[{ALL}], A[{ALL}], T.float32(1))"]),
        buffers=[WORK.replace("float32", "bool")],
    ),
    "a buffer of fewer axes": kernel(
        nest("n, c, h", ["S[n, c, h] = A[n, c, h, 0] * T.float32(2)"]),
        nest(ALL, [f"O[{ALL}] = A[{ALL}] + S[n, c, h]"]),
        buffers=['S = T.sblock_alloc_buffer((2, 2, 6), "float32")'],
    ),
    "an axis of one element": kernel(
        nest("c, h, w", [f"{FIRST} = A[0, c, h, w]", f"{FIRST} = {FIRST} * T.float32(2)"]),
        nest(ALL, [f"O[{ALL}] = A[{ALL}] + {FIRST}"]),
        buffers=['S = T.sblock_alloc_buffer((1, 2, 6, 4), "float32")'],
    ),
    "a buffer that is stored twice": kernel(
        nest(ALL, [f"S[{ALL}] = A[{ALL}]", f"S[{ALL}] = S[{ALL}] * T.float32(2)"]),
        nest(ALL, [f"O[{ALL}] = S[{ALL}] + S[n, c, 5 - h, w]"]),
        buffers=[WORK],
    ),
    "blocks of one name": kernel(
        f"{ONE_NAME}S[{ALL}] = A[{ALL}]",
        f"{ONE_NAME}O[{ALL}] = S[{ALL}] + S[n, c, 5 - h, w]",
        buffers=[WORK],
    ),
    "wider numbers on the way": kernel(
        nest(ALL, [f'S[{ALL}] = T.exp(T.Cast("float64", A[{ALL}]))']),
        nest(ALL, [f'O[{ALL}] = T.Cast("float32", S[{ALL}])']),
        buffers=[WORK.replace("float32", "float64")],
    ),
    "what is not finite": kernel(
        nest(ALL, [f"O[{ALL}] = T.Select(T.isfinite(A[{ALL}]), A[{ALL}], T.float32(1))"])
    ),
    "a variable of no loop": sum_over("", "reduce(1, 0)"),
}
SCHEDULED = "are scheduled"
ELSEWHERE = "reads its own result 'O' at another place"
LEFT = {
    "a scan": (written.scan("h", "spatial", True), ELSEWHERE),
    "a scan along the batch": (written.scan("n", "spatial", False), ELSEWHERE),
    "a declared scan": (written.scan("h", "scan", True), "writes an element more than once"),
    "addresses": (written.addressed("1 - n, c, h, w"), "takes an address by 'tirx.address_of'"),
    "a pointer": (written.pointer("call_pure_extern"), "takes an address"),
    "a call": (written.pointer("call_extern"), "calls 'tirx.call_extern', which is not known"),
    "constant places": (written.constant_places("pab"), "does not write at its own place"),
    "two blocks": (written.two_blocks(True), "before it is written"),
    "a loop inside": (written.LOOP_INSIDE, "holds a For"),
    "a result that is read": (written.READ_BEHIND, ""),
    "an input that is written": (
        kernel(
            nest(ALL, [f"O[{ALL}] = A[{ALL}] * A[{ALL}]"]),
            nest(ALL, [f"A[{ALL}] = T.float32(1)"]),
        ),
        "writes what it is given",
    ),
    "a step": (sum_over(*written.BINDINGS["step"]), SCHEDULED),
    "a minimum": (sum_over(*written.BINDINGS["minimum"]), "is not known"),
    "a loop backwards": (sum_over(*written.BINDINGS["reversed"]), SCHEDULED),
    "a multiple of a loop": (sum_over(*written.BINDINGS["affine"]), SCHEDULED),
    "a predicate": (sum_over(*written.BINDINGS["predicate"]), "has a predicate"),
    "a predicate on rows": (sum_over(*written.BINDINGS["predicate on rows"]), "has a predicate"),
    **REFUSED,
}
