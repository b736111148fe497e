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
HEADS = ("n", "c", "h", "w")
ALL = "n, c, h, w"

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
        text += _function(name, [nest(ALL, [f"O[{ALL}] = {value.replace('%s', ALL)}"])])
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
    names = [name for name in HEADS if name in variables]
    grid = ", ".join(str(SHAPE[HEADS.index(name)]) for name in names)
    lines = [f"for {', '.join('l' + name for name in names)} in T.grid({grid}):"]
    lines += [f"{'    ' * (1 + depth)}for {loop}:" for depth, loop in enumerate(loops)]
    inside = "    " * (1 + len(loops))
    # A block has a name of its own, else it could not be found.
    lines.append(f'{inside}with T.sblock("made_of_{abs(hash_of(variables, *body, init))}"):')
    given = {axis.split(" = ")[0] for axis in axes}
    bound = [
        f"{name} = T.axis.spatial({SHAPE[HEADS.index(name)]}, l{name})"
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
WORK_R = WORK.replace("S", "R", 1)
MAKE_S = nest(ALL, [f"S[{ALL}] = T.exp(A[{ALL}])"])


def earlier(axis: str, by: int = 1) -> str:
    """Return the indices of an element in front of one."""
    return ", ".join(f"{name} - {by}" if name == axis else name for name in HEADS)


# ------------------------------------------------------------------------------------- the kernels


def plain(by: int) -> str:
    """Rows of a window: what a group must take."""
    read = f"T.if_then_else({by} <= h, A[{earlier('h', by)}], T.float32(0))"
    return kernel(nest(ALL, [f"O[{ALL}] = A[{ALL}] * T.float32(3) + {read}"]))


def scan(axis: str, kind: str, through_s: bool) -> str:
    """A running sum: each element reads the one before."""
    source = "S" if through_s else "A"
    value = f"T.if_then_else({axis} == 0, {source}[{ALL}], {source}[{ALL}] + O[{earlier(axis)}])"
    extent = SHAPE[HEADS.index(axis)]
    block = nest(ALL, [f"O[{ALL}] = {value}"], axes=[f"{axis} = T.axis.{kind}({extent}, l{axis})"])
    return kernel(*([MAKE_S] if through_s else []), block, buffers=[WORK] if through_s else [])


HALF = "T.float32(0.5)"
AT_S = f"S[{ALL}]"
ZERO = f"O[{ALL}] = T.float32(0)"
STATEMENTS = (
    f"O[{ALL}] = S[{ALL}] * T.float32(2)",
    f"O[{ALL}] = O[{ALL}] + S[{ALL}]",
    f"O[{ALL}] = O[{ALL}] * S[{ALL}]",
)


def stores(first: str, then: Sequence[str]) -> str:
    """A block of several stores, in the place of what it reads."""
    return kernel(MAKE_S, nest(ALL, [first, *then]), buffers=[WORK])


def summed(extent: int, init: str, rest: str) -> str:
    """A sum over a working buffer, from something on."""
    block = nest(
        ALL,
        [f"O[{ALL}] = O[{ALL}] + S[{ALL}] * T.Cast('float32', r + 1) + {rest}"],
        loops=[f"ir in range({extent})"],
        axes=[f"r = T.axis.reduce({extent}, ir)"],
        init=f"O[{ALL}] = {init}",
    )
    return kernel(MAKE_S, block, buffers=[WORK])


def ordered(names: Sequence[str], bound: Sequence[str]) -> str:
    """A reduction over two variables whose order shows, with loops in an order of their own."""
    extents = {"p": 3, "q": 2}
    loops = [f"i{name} in range({extents[name]})" for name in names]
    axes = [f"{name} = T.axis.reduce({extents[name]}, i{name})" for name in bound]
    value = f"O[{ALL}] * T.float32(3) + A[n, c, p * 2 + q, w]"
    init = f"O[{ALL}] = A[{ALL}]"
    return kernel(nest(ALL, [f"O[{ALL}] = {value}"], loops=loops, axes=axes, init=init))


BINDINGS = {
    "plain": ("e in range(4)", "reduce(4, e)"),
    "step": ("e in T.serial(0, 4, step=2)", "reduce(4, e)"),
    "minimum": ("e in T.serial(1, 4)", "reduce((1, 4), e)"),
    "reversed": ("e in range(4)", "reduce(4, 3 - e)"),
    "affine": ("e in range(2)", "reduce(4, e * 2)"),
    "predicate": ("e in range(4)", "reduce(4, e)", "e < 3"),
    "predicate on rows": ("e in range(4)", "reduce(4, e)", "lh + e < 9"),
}
"""Loops that are not plain, but for the first, with the variable of each, and a predicate."""


def sum_over(
    loop: str,
    axis: str,
    where: str = "",
    *,
    init: str = f"O[{ALL}] = T.float32(1)",
    rows: str = "",
) -> str:
    """A sum over one variable, ``r``, of a loop, or of none."""
    axes = [*([rows] if rows else []), f"r = T.axis.{axis}"]
    body = [f"O[{ALL}] = O[{ALL}] * T.float32(2) + A[n, c, h, r % 4]"]
    return kernel(nest(ALL, body, loops=[loop] if loop else [], axes=axes, init=init, where=where))


def addressed(other: str) -> str:
    """A call that is given addresses, and reads on to the last row, where the difference is."""
    make = nest(ALL, [f"S[{ALL}] = T.if_then_else(h < 5, T.float32(0), A[{ALL}] * HALF)"])
    addresses = f"T.address_of(S[{ALL}]), T.address_of(S[{other}])"
    call = f'T.call_pure_extern("int32", "memcmp", {addresses}, 96 - h * 16 - w * 4)'
    value = f"T.Select({call} < 0, T.float32(1), A[{ALL}])"
    return kernel(make.replace("HALF", HALF), nest(ALL, [f"O[{ALL}] = {value}"]), buffers=[WORK])


def along(index: str, guard: str) -> str:
    """What is read twice, once at the same place, and once at another row."""
    other = f"S[n, c, {index}, w]"
    read = f"T.if_then_else({guard}, {other}, T.float32(4))" if guard else other
    return kernel(MAKE_S, nest(ALL, [f"O[{ALL}] = S[{ALL}] + {read}"]), buffers=[WORK])


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
    between = nest(ALL, [f"R[{ALL}] = S[n, c, {index}, w] * T.float32(2)"])
    last = nest(ALL, [f"O[{ALL}] = S[{ALL}] + R[{ALL}] * R[{ALL}]"])
    return kernel(MAKE_S, between, last, buffers=[WORK, WORK_R])


def gaps(index: str = SWAPPED, other: str = HALF) -> str:
    """Every second row of a working buffer, whose rows are read in no order."""
    between = nest(ALL, [f"R[{ALL}] = S[n, c, {index}, w] * {other}"])
    read = "R[n, c, T.min(h * 2, 5), w]"
    last = nest(ALL, [f"O[{ALL}] = {read} * {read}"])
    return kernel(MAKE_S, between, last, buffers=[WORK, WORK_R])


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
    declared = ["T.reads(A[0:2, 0:2, 0:6, 0:4])", f"T.writes(O[{ALL}])"]
    return kernel(nest(ALL, [*declared, f"O[{ALL}] = A[{ALL}] + {value}"]))


def two_blocks(declare: bool) -> str:
    """A buffer that two blocks write, the second one what the first one wrote."""
    first = nest(ALL, [f"O[{ALL}] = A[{ALL}]"])
    declared = [f"T.reads(O[{ALL}])", f"T.writes(O[{ALL}])"] if declare else []
    return kernel(first, nest(ALL, [*declared, f"O[{ALL}] = O[{ALL}] * O[n, c, 5, w]"]))


def undeclared(what: str) -> str:
    """A block that declares less than it does."""
    value = {"moves": f"A[{ALL}]", "computes": f"T.exp(A[{ALL}])"}[what]
    first = nest(ALL, ["T.reads()", "T.writes()", f"S[{ALL}] = {value}"])
    read = f"T.if_then_else(0 < h, S[{earlier('h')}], T.float32(0))"
    return kernel(first, nest(ALL, [f"O[{ALL}] = {read}"]), buffers=[WORK])


def looked_up(kind: str) -> str:
    """A table, looked up by a narrow number that was computed just before."""
    make = nest(ALL, [f'C[{ALL}] = T.Cast("{kind}", h * 5 + w) % T.Cast("{kind}", 6)'])
    read = f'A[n, c, T.Cast("int32", C[{ALL}]), w] + A[n, c, h, C[{ALL}] % T.Cast("{kind}", 4)]'
    work = f'C = T.sblock_alloc_buffer({SHAPE}, "{kind}")'
    return kernel(make, nest(ALL, [f"O[{ALL}] = {read}"]), buffers=[work])


def bindings(by: int) -> str:
    """Bindings, of which one is an index."""
    lines = [
        f"v: T.let = A[{ALL}]",
        f"k: T.let = T.max(h - {by}, 0)",
        f"O[{ALL}] = v * T.float32(2)",
        f"O[{ALL}] = O[{ALL}] + T.if_then_else(k < {by}, A[n, c, k, w], T.float32(0))",
    ]
    return kernel(nest(ALL, lines))


MIXED = kernel(MAKE_S, nest(ALL, [f"O[{ALL}] = S[{ALL}] + S[h % 2, c, n, w]"]), buffers=[WORK])
"""A working buffer whose first axis is read along the batch, and along rows."""

LOOP_INSIDE = kernel(
    nest(
        ALL,
        [
            f"O[{ALL}] = A[{ALL}]",
            "for k in range(3):",
            f"    O[{ALL}] = O[{ALL}] * T.float32(0.5) + A[n, c, h, k]",
        ],
    )
)
READ_BEHIND = kernel(
    nest(ALL, [f"O[{ALL}] = A[{ALL}] + T.float32(1)"]),
    nest(ALL, [f"S[{ALL}] = O[n, c, 5 - h, w]"]),
    buffers=[WORK],
)
"""A result that a later block reads at another place, and a working buffer between."""


@st.composite
def kernels(draw: Any) -> str:
    """Draw a kernel."""
    some = st.lists(st.sampled_from(STATEMENTS), max_size=3)
    firsts = st.sampled_from((STATEMENTS[0], ZERO))
    both = st.permutations(("p", "q"))
    forms = (
        st.builds(plain, st.integers(0, 3)),
        st.builds(
            scan, st.sampled_from(HEADS), st.sampled_from(("scan", "spatial")), st.booleans()
        ),
        st.builds(stores, firsts, some),
        st.builds(
            summed,
            st.sampled_from((1, 3)),
            st.sampled_from(("T.float32(0)", f"A[{ALL}]", AT_S)),
            st.sampled_from(("T.float32(0)", AT_S)),
        ),
        st.builds(ordered, both, both),
        st.sampled_from([*BINDINGS.values()]).map(lambda of: sum_over(*of)),
        st.builds(addressed, st.sampled_from(("1 - n, c, h, w", "n, 1 - c, h, w"))),
        st.builds(along, st.sampled_from(INDICES), st.sampled_from(("", "h % 2 == 1", "1 < h"))),
        st.builds(detour, st.sampled_from(INDICES)),
        st.builds(gaps),
        st.sampled_from((MIXED, LOOP_INSIDE, READ_BEHIND)),
        st.builds(pointer, st.sampled_from(("call_extern", "call_pure_extern"))),
        st.builds(constant_places, st.permutations(("p", "a", "b"))),
        st.builds(two_blocks, st.booleans()),
        st.builds(undeclared, st.sampled_from(("moves", "computes"))),
        st.builds(looked_up, st.sampled_from(("uint8", "int8", "int32"))),
        st.builds(bindings, st.integers(1, 3)),
    )
    return draw(st.one_of(*forms))
