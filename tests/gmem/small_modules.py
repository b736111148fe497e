# SPDX-License-Identifier: Apache-2.0
"""Modules of a few operators, and what `GMEMAllocate` reads off them."""

from __future__ import annotations

import re
from textwrap import indent

import numpy as np
import tvm
from relax_programs import parse
from relax_runs import lower
from tvm import relax

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem


def parsed(
    body: str, params: str = 'x: R.Tensor((64,), "float32")', attrs: str = ""
) -> tvm.IRModule:
    """Return a module with one function, of the given lines."""
    lines = [f"        {line}" for line in body.strip("\n").splitlines()]
    head = [f"        R.func_attr({{{attrs}}})"] if attrs else []
    source = ["@I.ir_module", "class Module:", "    @R.function(pure=False)"]
    return parse("\n".join([*source, f"    def main({params}):", *head, *lines]))


def module(*given: str) -> tvm.IRModule:
    """Lower what `parsed` returns."""
    return lower(parsed(*given))


def written_out(body: str, size: int = 16) -> str:
    """Return a module in which ``b = twice(a)`` is what `CallTIRRewrite` leaves of such a call."""
    ty = f'R.Tensor(({size},), "float32")'
    made = f'R.builtin.alloc_tensor(R.shape([{size}]), R.dtype("float32"), 0)'
    lines = re.sub(
        r"( *)(\w+) = twice\((\w+)\)",
        rf"\1\2: {ty} = {made}\n\1_\2 = cls.twice(\3, \2)",
        body.strip("\n"),
    )
    return f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer(({size},), "float32"), y: T.Buffer(({size},), "float32")):
        for i in range({size}):
            y[i] = x[i] + x[i]

    @R.function(pure=False)
    def main(x: {ty}):
        cls = Module
{indent(lines, " " * 8)}
"""


def read(lowered: tvm.IRModule, name: str = "main", **options: object):
    """Return what was read of a function."""
    (found,) = (
        p for p in plan_gmem(lowered, "best", GMEMOptions(**options)) if p.memory.name == name
    )
    return found


def placed(found) -> dict[str, str]:
    """Return the tensor of each buffer of a function's main memory, by the buffer's name."""
    main = found.memory.main
    return {buffer.name: main.uses[buffer.name].tensor for buffer in main.problem.buffers}


def read_body(body: str, *params: str):
    """Return what was read of a function of the given lines."""
    return read(module(body, *params))


CHAIN = """
a = R.nn.relu(x)
b = R.negative(a)
c = R.abs(b)
d = R.nn.relu(c)
return d
"""


RESHAPES = """
@R.function
def main(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "bool")):
    if c:
        flat = R.reshape(x, R.shape([32]))
        out = R.reshape(flat, R.shape([4, 8]))
    else:
        flat = R.reshape(x, R.shape([32]))
        out = R.reshape(flat, R.shape([4, 8]))
    return out
"""


SYMBOLIC = 'x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m",), "float32")'


SYMBOLIC_BODY = """
a = R.nn.relu(x)
b = R.negative(a)
e = R.abs(y)
f = R.sum(e)
d = R.add(R.sum(b), f)
return d
"""


def weights_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((64,), "float32")) for name in "xw")
    v = relax.Var(
        "v",
        relax.TupleType([relax.TensorType((3,), "int8"), relax.TensorType((1100,), "float32")]),
    )
    constant = relax.const(np.arange(64, dtype="float32"))
    with builder.function("main", [x, w, v], attrs={"num_input": 1}):
        a = builder.emit(relax.op.add(x, w))
        b = builder.emit(relax.op.add(a, constant))
        c = builder.emit(relax.op.multiply(b, constant))
        d = builder.emit(relax.op.sum(relax.TupleGetItem(v, 1)))
        builder.emit_func_output(builder.emit(relax.op.add(c, d)))
    return lower(builder.get())
