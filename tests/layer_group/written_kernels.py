# SPDX-License-Identifier: Apache-2.0
"""Kernels as people write them inside a Relax module: nothing that legalization would make.

Each is called between two element-wise kernels, so that the three of them form a group if
LayerGroup takes the middle one. All are defined: whatever they read was written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from hypothesis import strategies as st

SHAPE = (2, 2, 6, 4)
"""Batch, channels, rows, columns."""

_TENSOR = f'R.Tensor({SHAPE}, dtype="float32")'
_BUFFER = f'T.Buffer({SHAPE}, "float32")'
_HEADS = ("n", "c", "h", "w")
_ALL = "n, c, h, w"

_FRAME = """# from tvm.script import ir as I
# from tvm.script import tirx as T
# from tvm.script import relax as R

@I.ir_module
class Module:
"""


def module(kernels: Sequence[str]) -> tvm.IRModule:
    """Return a module with a function ``main_<i>`` that calls each kernel between two others."""
    text = _FRAME
    for name, value in (("before", "A[%s] + T.float32(0.5)"), ("behind", "A[%s] * A[%s]")):
        text += _function(name, [nest(_ALL, [f"O[{_ALL}] = {value.replace('%s', _ALL)}"])])
    for at, kernel in enumerate(kernels):
        text += kernel.replace("KERNEL", f"kernel_{at}")
        text += f"""
    @R.function
    def main_{at}(x: {_TENSOR}) -> {_TENSOR}:
        R.func_attr({{"num_input": 1}})
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.before, (x,), out_ty={_TENSOR})
            b = R.call_tir(cls.kernel_{at}, (a,), out_ty={_TENSOR})
            d = R.call_tir(cls.behind, (b,), out_ty={_TENSOR})
            R.output(d)
        return d
"""
    return tvm.script.from_source(text)


def _function(name: str, blocks: Sequence[str], buffers: Sequence[str] = ()) -> str:
    lines = [
        "@T.prim_func(private=True, s_tir=True)",
        f"def {name}(A: {_BUFFER}, O: {_BUFFER}):",
        '    T.func_attr({"tirx.noalias": True, "op_pattern": 8})',
        *(f"    {line}" for line in buffers),
        *(f"    {line}" for block in blocks for line in block.splitlines()),
    ]
    return "\n" + "\n".join(f"    {line}" for line in lines) + "\n"


def kernel(*blocks: str, buffers: Sequence[str] = ()) -> str:
    """Return a kernel of some blocks that makes ``O`` of ``A``."""
    return _function("KERNEL", blocks, buffers)


def nest(
    variables: str,
    body: Sequence[str],
    *,
    loops: Sequence[str] = (),
    axes: Sequence[str] = (),
    init: str = "",
    where: str = "",
) -> str:
    """Return a block over some of the four axes.

    Parameters
    ----------
    variables
        Names of its axes, as they stand in indices.
    body
        Statements.
    loops
        More loops, inside of those over the axes: ``for`` and what follows.
    axes
        Of those loops, or in the place of an axis: ``name = T.axis...``.
    init, where
        The initial statement and the predicate.
    """
    names = [name for name in _HEADS if name in variables]
    grid = ", ".join(str(SHAPE[_HEADS.index(name)]) for name in names)
    lines = [f"for {', '.join('l' + name for name in names)} in T.grid({grid}):"]
    lines += [f"{'    ' * (1 + depth)}for {loop}:" for depth, loop in enumerate(loops)]
    inside = "    " * (1 + len(loops))
    # A block has a name of its own, else it could not be found.
    lines.append(f'{inside}with T.sblock("made_of_{abs(hash_of(variables, *body, init))}"):')
    given = {axis.split(" = ")[0] for axis in axes}
    bound = [
        f"{name} = T.axis.spatial({SHAPE[_HEADS.index(name)]}, l{name})"
        for name in names
        if name not in given
    ]
    inner = [*bound, *axes]
    if where:
        inner.append(f"T.where({where})")
    if init:
        inner += ["with T.init():", f"    {init}"]
    inner += body
    return "\n".join(lines + [f"{inside}    {line}" for line in inner])


def hash_of(*parts: str) -> int:
    """Return a number that tells blocks apart, the same in every run."""
    number = 0
    for character in "|".join(parts):
        number = (number * 31 + ord(character)) % 1000003
    return number


WORK = f'S = T.sblock_alloc_buffer({SHAPE}, "float32")'
MAKE_S = nest(_ALL, [f"S[{_ALL}] = T.exp(A[{_ALL}])"])


def earlier(axis: str, by: int = 1) -> str:
    """Return the indices of an element in front of one."""
    return ", ".join(f"{name} - {by}" if name == axis else name for name in _HEADS)


# ------------------------------------------------------------------------------------- the kernels


def plain(by: int) -> str:
    """Rows of a window: what a group must take."""
    read = f"T.if_then_else({by} <= h, A[{earlier('h', by)}], T.float32(0))"
    return kernel(nest(_ALL, [f"O[{_ALL}] = A[{_ALL}] * T.float32(3) + {read}"]))


SCANS = ("scan", "spatial")
"""How the variable of a running sum is declared."""


def scan(axis: str, kind: str, through_s: bool) -> str:
    """A running sum: each element reads the one before."""
    source = "S" if through_s else "A"
    value = f"T.if_then_else({axis} == 0, {source}[{_ALL}], {source}[{_ALL}] + O[{earlier(axis)}])"
    extent = SHAPE[_HEADS.index(axis)]
    block = nest(
        _ALL, [f"O[{_ALL}] = {value}"], axes=[f"{axis} = T.axis.{kind}({extent}, l{axis})"]
    )
    return kernel(*([MAKE_S] if through_s else []), block, buffers=[WORK] if through_s else [])


HALF = "T.float32(0.5)"
AT_S = f"S[{_ALL}]"
ZERO = f"O[{_ALL}] = T.float32(0)"
STATEMENTS = (
    f"O[{_ALL}] = S[{_ALL}] * T.float32(2)",
    f"O[{_ALL}] = O[{_ALL}] + S[{_ALL}]",
    f"O[{_ALL}] = O[{_ALL}] * S[{_ALL}]",
    f"if S[{_ALL}] > T.float32(1.5):\n    O[{_ALL}] = S[{_ALL}]",
    f"if S[{_ALL}] > T.float32(1.5):\n    O[{_ALL}] = S[{_ALL}]\nelse:\n    O[{_ALL}] = A[{_ALL}]",
)


def stores(first: str, then: Sequence[str]) -> str:
    """A block of several stores, in the place of what it reads."""
    body = [line for text in (first, *then) for line in text.splitlines()]
    return kernel(MAKE_S, nest(_ALL, body), buffers=[WORK])


def summed(extent: int, init: str, rest: str) -> str:
    """A sum over a working buffer, from something on."""
    block = nest(
        _ALL,
        [f"O[{_ALL}] = O[{_ALL}] + S[{_ALL}] * T.Cast('float32', r + 1) + {rest}"],
        loops=[f"ir in range({extent})"],
        axes=[f"r = T.axis.reduce({extent}, ir)"],
        init=f"O[{_ALL}] = {init}",
    )
    return kernel(MAKE_S, block, buffers=[WORK])


def ordered(names: Sequence[str], bound: Sequence[str]) -> str:
    """A reduction over two variables whose order shows, with loops in an order of their own."""
    extents = {"p": 3, "q": 2}
    loops = [f"i{name} in range({extents[name]})" for name in names]
    axes = [f"{name} = T.axis.reduce({extents[name]}, i{name})" for name in bound]
    value = f"O[{_ALL}] * T.float32(3) + A[n, c, p * 2 + q, w]"
    init = f"O[{_ALL}] = A[{_ALL}]"
    return kernel(nest(_ALL, [f"O[{_ALL}] = {value}"], loops=loops, axes=axes, init=init))


BINDINGS = {
    "plain": ("e in range(4)", "r = T.axis.reduce(4, e)", ""),
    "step": ("e in T.serial(0, 4, step=2)", "r = T.axis.reduce(4, e)", ""),
    "minimum": ("e in T.serial(1, 4)", "r = T.axis.reduce((1, 4), e)", ""),
    "reversed": ("e in range(4)", "r = T.axis.reduce(4, 3 - e)", ""),
    "affine": ("e in range(2)", "r = T.axis.reduce(4, e * 2)", ""),
    "predicate": ("e in range(4)", "r = T.axis.reduce(4, e)", "e < 3"),
    "predicate on rows": ("e in range(4)", "r = T.axis.reduce(4, e)", "lh + e < 9"),
}


def bound(kind: str) -> str:
    """A reduction whose variable runs as a loop does that is not plain."""
    loop, axis, where = BINDINGS[kind]
    value = f"O[{_ALL}] * T.float32(2) + A[n, c, h, r]"
    block = nest(
        _ALL,
        [f"O[{_ALL}] = {value}"],
        loops=[loop],
        axes=[axis],
        init=f"O[{_ALL}] = T.float32(1)",
        where=where,
    )
    return kernel(block)


def addressed(other: str) -> str:
    """A call that is given addresses, and reads on to the last row, where the difference is."""
    make = nest(_ALL, [f"S[{_ALL}] = T.if_then_else(h < 5, T.float32(0), A[{_ALL}] * HALF)"])
    addresses = f"T.address_of(S[{_ALL}]), T.address_of(S[{other}])"
    call = f'T.call_pure_extern("int32", "memcmp", {addresses}, 96 - h * 16 - w * 4)'
    value = f"T.Select({call} < 0, T.float32(1), A[{_ALL}])"
    return kernel(make.replace("HALF", HALF), nest(_ALL, [f"O[{_ALL}] = {value}"]), buffers=[WORK])


def along(index: str, guard: str) -> str:
    """What is read twice, once at the same place, and once at another row."""
    other = f"S[n, c, {index}, w]"
    read = f"T.if_then_else({guard}, {other}, T.float32(4))" if guard else other
    return kernel(MAKE_S, nest(_ALL, [f"O[{_ALL}] = S[{_ALL}] + {read}"]), buffers=[WORK])


WRAPPED = 'T.Cast("int32", T.Cast("uint8", h) * T.uint8(86)) % 6'
SWAPPED = "T.if_then_else(h == 3, 4, T.if_then_else(h == 4, 3, h))"
INDICES = (
    "5 - h",
    "h * 5 % 6",
    "(h * h) % 6",
    "T.max(h - 2, 0)",
    "T.min(h * 3, 5)",
    WRAPPED,
    "T.if_then_else(h < 2, h, T.if_then_else(h < 4, 5 - h, 0))",
    "T.if_then_else(h == 1, 5, h)",
    SWAPPED,
    "n * 3 + h // 2",
    "(h + w) % 6",
)


def detour(index: str) -> str:
    """What is read at its own place, and at another row by a working buffer between."""
    between = nest(_ALL, [f"R[{_ALL}] = S[n, c, {index}, w] * T.float32(2)"])
    last = nest(_ALL, [f"O[{_ALL}] = S[{_ALL}] + R[{_ALL}] * R[{_ALL}]"])
    return kernel(MAKE_S, between, last, buffers=[WORK, WORK.replace("S", "R", 1)])


def gaps() -> str:
    """Every second row of a working buffer, whose rows are read in no order."""
    between = nest(_ALL, [f"R[{_ALL}] = S[n, c, {SWAPPED}, w] * {HALF}"])
    read = "R[n, c, T.min(h * 2, 5), w]"
    last = nest(_ALL, [f"O[{_ALL}] = {read} * {read}"])
    return kernel(MAKE_S, between, last, buffers=[WORK, WORK.replace("S", "R", 1)])


def mixed() -> str:
    """A working buffer whose first axis is read along the batch, and along rows."""
    block = nest(_ALL, [f"O[{_ALL}] = S[{_ALL}] + S[h % 2, c, n, w]"])
    return kernel(MAKE_S, block, buffers=[WORK])


def constant_places(order: Sequence[str]) -> str:
    """One block that stores at constant indices of buffers of different shapes."""
    lines = {
        "p": "P[0, c, h, w] = A[0, c, h, w] + A[1, c, h, w]",
        "a": "O[0, c, h, w] = A[0, c, h, w] * T.float32(2)",
        "b": "O[1, c, h, w] = A[1, c, h, w] - T.float32(2)",
    }
    block = nest("c, h, w", [lines[key] for key in order])
    return kernel(block, buffers=['P = T.sblock_alloc_buffer((1, 2, 6, 4), "float32")'])


def pointer(call: str) -> str:
    """A call that is given all of a tensor."""
    value = f'T.Cast("float32", T.{call}("int32", "memcmp", A.data, A.data, 4))'
    declared = ["T.reads(A[0:2, 0:2, 0:6, 0:4])", f"T.writes(O[{_ALL}])"]
    return kernel(nest(_ALL, [*declared, f"O[{_ALL}] = A[{_ALL}] + {value}"]))


def read_behind() -> str:
    """A result that a later block reads at another place, and a working buffer between."""
    first = nest(_ALL, [f"O[{_ALL}] = A[{_ALL}] + T.float32(1)"])
    return kernel(first, nest(_ALL, [f"S[{_ALL}] = O[n, c, 5 - h, w]"]), buffers=[WORK])


def written_input() -> str:
    """A kernel that changes what it is given to read."""
    first = nest(_ALL, [f"O[{_ALL}] = A[{_ALL}] * A[{_ALL}]"])
    return kernel(first, nest(_ALL, [f"A[{_ALL}] = T.float32(1)"]))


def two_blocks(declare: bool) -> str:
    """A buffer that two blocks write, the second one what the first one wrote."""
    first = nest(_ALL, [f"O[{_ALL}] = A[{_ALL}]"])
    declared = [f"T.reads(O[{_ALL}])", f"T.writes(O[{_ALL}])"] if declare else []
    return kernel(first, nest(_ALL, [*declared, f"O[{_ALL}] = O[{_ALL}] * O[n, c, 5, w]"]))


def undeclared(what: str) -> str:
    """A block that declares less than it does."""
    value = {"moves": f"A[{_ALL}]", "computes": f"T.exp(A[{_ALL}])"}[what]
    first = nest(_ALL, ["T.reads()", "T.writes()", f"S[{_ALL}] = {value}"])
    read = f"T.if_then_else(0 < h, S[{earlier('h')}], T.float32(0))"
    return kernel(first, nest(_ALL, [f"O[{_ALL}] = {read}"]), buffers=[WORK])


def looked_up(kind: str) -> str:
    """A table, looked up by a narrow number that was computed just before."""
    make = nest(_ALL, [f'C[{_ALL}] = T.Cast("{kind}", h * 5 + w) % T.Cast("{kind}", 6)'])
    read = f'A[n, c, T.Cast("int32", C[{_ALL}]), w] + A[n, c, h, C[{_ALL}] % T.Cast("{kind}", 4)]'
    work = f'C = T.sblock_alloc_buffer({SHAPE}, "{kind}")'
    return kernel(make, nest(_ALL, [f"O[{_ALL}] = {read}"]), buffers=[work])


def bindings(by: int) -> str:
    """Bindings, of which one is an index."""
    lines = [
        f"v: T.let = A[{_ALL}]",
        f"k: T.let = T.max(h - {by}, 0)",
        f"O[{_ALL}] = v * T.float32(2)",
        f"if k < {by}:",
        f"    O[{_ALL}] = O[{_ALL}] + A[n, c, k, w]",
    ]
    return kernel(nest(_ALL, lines))


def loop_inside() -> str:
    """A loop inside of the block."""
    lines = [
        f"O[{_ALL}] = A[{_ALL}]",
        "for k in range(3):",
        f"    O[{_ALL}] = O[{_ALL}] * T.float32(0.5) + A[n, c, h, k]",
    ]
    return kernel(nest(_ALL, lines))


# -------------------------------------------------------------------------- each breaks one rule


def with_buffer(what: str, *body: str) -> str:
    """A block with a working buffer ``Q``; it makes the result without it if nothing else is said.

    Parameters
    ----------
    what
        Of the buffer: its shape, its type, and more.
    body
        Statements.
    """
    result = f"O[{_ALL}] = A[{_ALL}] * T.float32(2)"
    return kernel(
        nest(_ALL, [*(body or (result,))]), buffers=[f"Q = T.sblock_alloc_buffer({what})"]
    )


def sum_over(
    loop: str, axis: str, *, init: str = f"O[{_ALL}] = T.float32(1)", rows: str = ""
) -> str:
    """A sum over one variable, ``r``, of a loop, or of none."""
    axes = [*([rows] if rows else []), f"r = T.axis.{axis}"]
    value = f"O[{_ALL}] * T.float32(2) + A[n, c, h, r % 4]"
    body = [f"O[{_ALL}] = {value}"]
    return kernel(nest(_ALL, body, loops=[loop] if loop else [], axes=axes, init=init))


def idle(extent: int) -> str:
    """A loop that nothing depends on."""
    return kernel(nest(_ALL, [f"O[{_ALL}] = A[{_ALL}]"], loops=[f"e in range({extent})"]))


def truth_values() -> str:
    """A working buffer of truth values."""
    make = nest(_ALL, [f"S[{_ALL}] = A[{_ALL}] > T.float32(1)"])
    use = nest(_ALL, [f"O[{_ALL}] = T.Select(S[{_ALL}], A[{_ALL}], T.float32(1))"])
    return kernel(make, use, buffers=[WORK.replace("float32", "bool")])


def wider() -> str:
    """A working buffer of wider elements than the result that replaces them."""
    make = nest(_ALL, [f'S[{_ALL}] = T.exp(T.Cast("float64", A[{_ALL}]))'])
    use = nest(_ALL, [f'O[{_ALL}] = T.Cast("float32", S[{_ALL}])'])
    return kernel(make, use, buffers=[WORK.replace("float32", "float64")])


def finite() -> str:
    """A call that TVM declares nothing of, and that has no effect."""
    value = f"T.Select(T.isfinite(A[{_ALL}]), A[{_ALL}], T.float32(1))"
    return kernel(nest(_ALL, [f"O[{_ALL}] = {value}"]))


def fewer_axes() -> str:
    """A working buffer of three axes."""
    make = nest("n, c, h", ["S[n, c, h] = A[n, c, h, 0] * T.float32(2)"])
    use = nest(_ALL, [f"O[{_ALL}] = A[{_ALL}] + S[n, c, h]"])
    return kernel(make, use, buffers=['S = T.sblock_alloc_buffer((2, 2, 6), "float32")'])


def one_element() -> str:
    """A working buffer with an axis of one element, which is stored and read at 0."""
    place = "S[0, c, h, w]"
    make = nest("c, h, w", [f"{place} = A[0, c, h, w]", f"{place} = {place} * T.float32(2)"])
    use = nest(_ALL, [f"O[{_ALL}] = A[{_ALL}] + {place}"])
    return kernel(make, use, buffers=['S = T.sblock_alloc_buffer((1, 2, 6, 4), "float32")'])


def stored_twice() -> str:
    """A working buffer that is stored twice."""
    make = nest(_ALL, [f"S[{_ALL}] = A[{_ALL}]", f"S[{_ALL}] = S[{_ALL}] * T.float32(2)"])
    use = nest(_ALL, [f"O[{_ALL}] = S[{_ALL}] + S[n, c, 5 - h, w]"])
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
    return kernel(nest(_ALL, [*lines, f"O[{_ALL}] = A[{_ALL}] * T.float32(2)"], where=where))


DECLARED = (f"T.reads(A[{_ALL}])", f"T.writes(O[{_ALL}])")
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
        with_buffer(TALLER, f"O[{_ALL}] = A[{_ALL}]", f"Q[{_ALL}] = A[{_ALL}]"),
        "does not write at its own place",
    ),
    "results at two places": (
        with_buffer(f'{SHAPE}, "float32"', f"O[{_ALL}] = A[{_ALL}]", f"Q[{OTHER}] = A[{_ALL}]"),
        "does not write at its own place",
    ),
    "a part of a buffer": (
        with_buffer(TALLER, f"Q[{_ALL}] = A[{_ALL}]", f"O[{_ALL}] = Q[{_ALL}]"),
        "does not write one whole element at a time",
    ),
    "a diagonal of places": (
        kernel(
            nest("n, h, w", ["S[n, n, h, w] = A[n, 1, h, w]"]),
            nest(_ALL, [f"O[{_ALL}] = S[n, n, h, w]"]),
            buffers=[WORK],
        ),
        "does not write one whole element at a time",
    ),
    "a diagonal of loops": (
        kernel(nest("n, h, w", [f"O[{_ALL}] = A[{_ALL}]"], axes=["c = T.axis.spatial(2, ln)"])),
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
        sum_over("e in range(4)", "reduce(4, e)", init=f"O[{_ALL}] = A[n, c, h, r]"),
        "uses 'r', which is not its own",
    ),
    "a read at another place": (
        in_block(f"O[{_ALL}] = A[{_ALL}]", f"O[{_ALL}] = O[0, c, h, w]"),
        "at another place",
    ),
    "nothing": (
        kernel(nest(_ALL, [f"v: T.let = A[{_ALL}]"]), nest(_ALL, [ZERO])),
        "writes nothing",
    ),
    "no blocks": (
        kernel("for n, c, h, w in T.grid(2, 2, 6, 4):\n    O[n, c, h, w] = A[n, c, h, w]").replace(
            ", s_tir=True", ""
        ),
        "not in S-TIR with a root block",
    ),
    "some elements": (stores(STATEMENTS[3], ()), "does not write all of its elements"),
    "a result in two blocks": (
        kernel(nest(_ALL, [ZERO]), nest(_ALL, [f"O[{_ALL}] = A[{_ALL}]"])),
        "a buffer is written by more than one block",
    ),
    "a buffer before it is made": (
        kernel(nest(_ALL, [f"O[{_ALL}] = S[{_ALL}]"]), MAKE_S, buffers=[WORK]),
        "reads what a later block writes",
    ),
    "a buffer that is never made": (
        kernel(nest(_ALL, [f"O[{_ALL}] = S[{_ALL}]"]), buffers=[WORK]),
        "reads what a later block writes",
    ),
    "blocks in one loop": (kernel(_SHARED_LOOP, buffers=[WORK]), "blocks share a loop"),
}
"""Kernels, and what LayerGroup says of each where it leaves it alone."""


@st.composite
def kernels(draw: Any) -> str:
    """Draw a kernel."""
    some = st.lists(st.sampled_from(STATEMENTS), max_size=3)
    firsts = st.sampled_from((STATEMENTS[0], STATEMENTS[4], ZERO))
    both = st.permutations(("p", "q"))
    forms = (
        st.builds(plain, st.integers(0, 3)),
        st.builds(
            scan, st.sampled_from(_HEADS), st.sampled_from(("scan", "spatial")), st.booleans()
        ),
        st.builds(stores, firsts, some),
        st.builds(
            summed,
            st.sampled_from((1, 3)),
            st.sampled_from(("T.float32(0)", f"A[{_ALL}]", AT_S)),
            st.sampled_from(("T.float32(0)", AT_S)),
        ),
        st.builds(ordered, both, both),
        st.builds(bound, st.sampled_from(tuple(BINDINGS))),
        st.builds(addressed, st.sampled_from(("1 - n, c, h, w", "n, 1 - c, h, w"))),
        st.builds(along, st.sampled_from(INDICES), st.sampled_from(("", "h % 2 == 1", "1 < h"))),
        st.builds(detour, st.sampled_from(INDICES)),
        st.builds(gaps),
        st.builds(mixed),
        st.builds(pointer, st.sampled_from(("call_extern", "call_pure_extern"))),
        st.builds(read_behind),
        st.builds(constant_places, st.permutations(("p", "a", "b"))),
        st.builds(two_blocks, st.booleans()),
        st.builds(undeclared, st.sampled_from(("moves", "computes"))),
        st.builds(looked_up, st.sampled_from(("uint8", "int8", "int32"))),
        st.builds(bindings, st.integers(1, 3)),
        st.builds(loop_inside),
    )
    return draw(st.one_of(*forms))
