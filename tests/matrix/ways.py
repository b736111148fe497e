# SPDX-License-Identifier: Apache-2.0
"""Every way in which a kernel reaches a buffer, and every place in which it may stand.

A kernel fills ``x`` from ``A``; a *way* copies ``x`` to ``y``; ``z``, of another type, is made of
``y`` backwards; and ``O`` gets ``z``. Between ``x`` and the way stands another buffer's whole life,
``before``, and behind the way that of ``behind``: a plan that does not see the way read ``x`` or
write ``y`` puts them on its bytes, and the numbers are wrong.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import ml_dtypes
import numpy as np
import tvm

LENGTH = 32
"""Elements of a buffer."""

ROUNDS = 4
"""Iterations of a loop around a kernel."""

_TAB = "    "

TYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "bool", "int64")


def _moved(to: str, source: str, elements: int = LENGTH) -> str:
    size = f"T.int64({{b}} * {elements})"
    return f'T.evaluate(T.call_extern("handle", "memmove", {to}, {source}, {size}))'


def _through(address: str) -> str:
    """Return what moves all by way of memory that nothing but a buffer at its address reaches."""
    return (
        'z = T.alloc_buffer((128,), "{t}", scope="{s}")\n'
        f'v = T.decl_buffer((32,), "{{t}}", data={address}, scope="{{s}}")\n'
        "for i in range(32):\n    v[i] = x[i]\n"
        "for i in range(32):\n    y[i] = v[i]"
    )


def _views(array: str, more: str = "", number: int | str = "") -> str:
    """Return the lines that declare views of ``y`` and ``x``."""
    return "".join(
        f'{view}{number} = T.decl_buffer({array}, data={of}.data{more}, scope="{{s}}")\n'
        for view, of in (("v", "y"), ("w", "x"))
    )


_ALL_OF = "for i, j in T.grid({}, {}):\n    v[i, j] = w[i, j]"
_HALVES = range(0, LENGTH, LENGTH // 2)

_ARRAY = (
    "T.tvm_stack_make_array({0}.data, T.tvm_stack_make_shape(32, dtype='handle'), 0, 1, "
    "T.Cast('{{t}}', 0), 0, dtype='handle')"
)

_CALLEE = """
@T.prim_func(s_tir=True, private=True)
def move(p: T.handle, q: T.handle):
    to = T.decl_buffer((32,), "{t}", data=p)
    source = T.decl_buffer((32,), "{t}", data=q)
    for i in range(32):
        to[i] = source[i]
"""

WAYS: dict[str, str] = {
    "element": "for i in range(32):\n    y[i] = x[i]",
    "vector": "for i in range(8):\n    y[T.Ramp(i * 4, 1, 4)] = x[T.Ramp(i * 4, 1, 4)]",
    "vectorized loop": (
        "for i in range(8):\n    for j in T.vectorized(4):\n        y[i * 4 + j] = x[i * 4 + j]"
    ),
    "scattered vector": "for i in range(8):\n    y[T.Ramp(i, 8, 4)] = x[T.Ramp(i, 8, 4)]",
    "broadcast": "for i in range(32):\n    y[i] = T.Shuffle([x[T.Ramp(i, 0, 4)]], [2])",
    "narrow index": (
        "for i in range(32):\n"
        "    y[T.Cast('int8', F[0]) * T.Cast('int8', i)] = x[T.Cast('uint8', F[0] * i)]"
    ),
    "mask": (
        """
        for i in range(8):
            T.evaluate(
                T.masked_store(
                    y,
                    T.masked_load("{t}x4", x, T.Ramp(i * 4, 1, 4), T.Broadcast(T.bool(True), 4)),
                    T.Ramp(i * 4, 1, 4),
                    T.Ramp(i * 4, 1, 4) < T.Broadcast(32, 4),
                )
            )
        """
    ),
    **{
        name: _moved(f"y.access_ptr({to})", f"x.access_ptr({source})")
        for name, to, source in (
            ("access_ptr", '"w"', '"r"'),
            ("access_ptr, read and written", '"rw"', '"rw"'),
            ("access_ptr, by mask", "2", "1"),
        )
    },
    "access_ptr, offset": (
        "\n".join(
            _moved(f'y.access_ptr("w", offset={at})', f'x.access_ptr("r", offset={at})', 16)
            for at in _HALVES
        )
    ),
    "access_ptr, offset and extent": (
        "\n".join(
            _moved(
                f'y.access_ptr("w", offset={at}, extent=16)',
                f'x.access_ptr("r", offset={at}, extent=16)',
                16,
            )
            for at in _HALVES
        )
    ),
    "access_ptr, computed offset": (
        "for i in range(8):\n    "
        + _moved('y.access_ptr("w", offset=i * 4)', 'x.access_ptr("r", offset=i * 4)', 4)
    ),
    "access_ptr, narrow offset": (
        "for i in range(8):\n    "
        + _moved(
            'y.access_ptr("w", offset=T.Cast("int8", F[0] * i * 4))',
            'x.access_ptr("r", offset=T.Cast("uint8", F[0] * i * 4))',
            4,
        )
    ),
    "access_ptr, vectors": _moved(
        'y.access_ptr("w", ptr_type=T.handle("{t}").ty, content_lanes=4)',
        'x.access_ptr("r", content_lanes=4)',
    ),
    "address_of": _moved("T.address_of(y[0])", "T.address_of(x[0])"),
    "address_of an element": (
        "for i in range(8):\n    " + _moved("T.address_of(y[i * 4])", "T.address_of(x[i * 4])", 4)
    ),
    "data": _moved("y.data", "x.data"),
    "pointer that is kept": (
        'p: T.let[T.handle("{t}", "{s}")] = x.data\n'
        'w = T.decl_buffer((32,), "{t}", data=p, scope="{s}")\n'
        "for i in range(32):\n    y[i] = w[i]"
    ),
    "DeclBuffer": _views('(32,), "{t}"') + "for i in range(32):\n    v[i] = w[i]",
    "DeclBuffer, another type": (
        _views('(32 * {b},), "uint8"') + "for i in range(32 * {b}):\n    v[i] = w[i]"
    ),
    "DeclBuffer, another shape": _views('(8, 4), "{t}"') + _ALL_OF.format(8, 4),
    "DeclBuffer, offset": "\n".join(
        _views('(16,), "{t}"', f", elem_offset={at}", at)
        + f"for i in range(16):\n    v{at}[i] = w{at}[i]"
        for at in _HALVES
    ),
    "DeclBuffer, strides": _views('(4, 8), "{t}"', ", strides=(1, 4)") + _ALL_OF.format(4, 8),
    "DeclBuffer at an access_ptr alone": _through('z.access_ptr("rw")'),
    "DeclBuffer at an address alone": _through("T.address_of(z[4])"),
    "DeclBuffer behind an address alone": _through("T.handle_add_byte_offset(z.data, 64)"),
    "access_ptr of a DeclBuffer": (
        _views('(32,), "{t}"') + _moved('v.access_ptr("w")', 'w.access_ptr("r")')
    ),
    "access_ptr of bytes": (
        _views('(32 * {b},), "uint8"') + _moved('v.access_ptr("w")', 'w.access_ptr("r")')
    ),
    "region": "T.tile.copy(y[0:32], x[0:32])",
    "tvm_stack_make_array": (
        f"T.evaluate(T.call_packed('tvm_ext.matrix.copy', {_ARRAY.format('y')}, "
        f"{_ARRAY.format('x')}))"
    ),
    "call_packed": "T.evaluate(T.call_packed('tvm_ext.matrix.copy', y, x))",
    "call_packed of pointers": (
        "T.evaluate(T.call_packed('tvm_ext.matrix.move', y.data, x.data, 32 * {b}))"
    ),
    "call_cpacked": (
        "T.evaluate(T.call_cpacked('tvm_ext_matrix_move', y.data, x.data, 32 * {b}, T.int32(0)))"
    ),
    "call_pure_extern": (
        "for i in range(32):\n"
        "    y[i] = x[i] + T.Cast('{t}', T.call_pure_extern('int32', 'isblank', 65))"
    ),
    "function of the module": "M.move(y.data, x.data)",
    "atomic": (
        """
        for i in range(32):
            y[i] = T.Cast("{t}", 0)
        for i in range(32):
            T.evaluate(T.call_intrin("{t}", "tirx.atomic_add", T.address_of(y[i]), x[i]))
        """
    ),
    "asynchronous copy": (
        """
        with T.attr(0, "async_commit_queue_scope", 0):
            with T.attr(0, "async_scope", 1):
                for i in range(32):
                    y[i] = x[i]
        with T.attr(0, "async_wait_queue_scope", 0):
            with T.attr(0, "async_wait_inflight_count", 0):
                T.evaluate(0)
        """
    ),
    "cp_async": (
        'T.evaluate(T.call_intrin("handle", "tirx.s_tir.cp_async_raw", y.data, 0, x.data, 0, '
        "32 * {b}))\n"
        'T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_all"))'
    ),
    "tensorized block": (
        """
        for i in range(2):
            with T.sblock("move"):
                vi = T.axis.spatial(2, i)
                T.reads(x[vi * 16 : vi * 16 + 16])
                T.writes(y[vi * 16 : vi * 16 + 16])
                source = T.match_buffer(
                    x[vi * 16 : vi * 16 + 16], (16,), "{t}", scope="{s}", offset_factor=1
                )
                to = T.match_buffer(
                    y[vi * 16 : vi * 16 + 16], (16,), "{t}", scope="{s}", offset_factor=1
                )
                """
        + _moved('to.access_ptr("w")', 'source.access_ptr("r")', 16)
    ),
}
"""How ``y`` becomes what ``x`` is: TVMScript, in which ``{t}`` is the type of the elements."""

THREADS = "by the threads of a GPU"
"""The place in which each thread moves one element to ``x`` and from ``y``, and all go the way."""

PLACES: dict[str, str] = {
    "alone": "",
    "in a loop": f"for k in range({ROUNDS}):",
    "in a branch": "if F[0] > 0:",
    "in a parallel loop": f"for k in T.parallel({ROUNDS}):",
    "in a loop, made outside": f"for k in range({ROUNDS}):",
    "in a loop, in two slots": f"for k in range({ROUNDS}):",
    THREADS: f"""
        for k in T.thread_binding({ROUNDS}, thread="blockIdx.x"):
        for tx in T.thread_binding({LENGTH}, thread="threadIdx.x"):
    """,
}
"""What stands around a kernel, line by line."""

_ALLOCATIONS = """
x = T.alloc_buffer((32,), "{t}", scope="{s}")
before = T.alloc_buffer((32,), "{t}", scope="{s}")
y = T.alloc_buffer((32,), "{t}", scope="{s}")
behind = T.alloc_buffer((32,), "{t}", scope="{s}")
z = T.alloc_buffer((32,), "{o}", scope="{s}")
"""

_TWO_SLOTS = 'annotations={"multi_buffer": 2}'

_STAGES = """
x[i] = A[k * 32 + i]
before[i] = A[k * 32 + 31 - i]
O[k * 32 + i] = T.Cast("{o}", before[31 - i])
{way}
behind[i] = A[k * 32 + 31 - i]
O[k * 32 + i] = O[k * 32 + i] + T.Cast("{o}", behind[31 - i])
z[i] = T.Cast("{o}", y[31 - i])
O[k * 32 + i] = O[k * 32 + i] + z[i]
""".strip()

_MODULE = """
@I.ir_module
class M:
{other}
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((128,), "{t}"), O: T.Buffer((128,), "{o}"), F: T.Buffer((1,), "int32")):
{body}
"""


def bytes_of(dtype: str) -> int:
    """Return the bytes of an element."""
    return max(tvm.DataType(dtype).bits // 8, 1)


def result_type(dtype: str) -> str:
    """Return the type of what a kernel makes of elements."""
    return "float32" if "float" in dtype else "int32"


@cache
def module_of(way: str, place: str, dtype: str, scope: str) -> tvm.IRModule:
    """Return a kernel as a user writes it."""
    names = {
        "way": dedent(WAYS[way]).strip(),
        "t": dtype,
        "b": str(bytes_of(dtype)),
        "o": result_type(dtype),
        "s": scope,
    }

    def filled(text: str) -> str:
        text = text.strip("\n")
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    allocations, around = filled(_ALLOCATIONS), PLACES[place]
    if place.endswith("slots"):
        allocations = allocations.replace(f'"{scope}")', f'"{scope}", {_TWO_SLOTS})')
    stages = _STAGES.split("\n")
    if place != THREADS:
        stages = [s if s == "{way}" else f"for i in range(32):\n{_TAB}{s}" for s in stages]
    else:
        stages = [s.replace("i]", "tx]") for s in stages]
    kernel = filled("\n".join(stages))
    if rounds_of(place) == 1:
        kernel = kernel.replace("k * 32 + ", "")
    if place.endswith("outside"):
        body = f"{allocations}\n{around}\n{indent(kernel, _TAB)}"
    else:
        body = f"{allocations}\n{kernel}"
        for line in reversed(around.split("\n")):
            if not line.strip():
                continue
            body = f"{line.strip()}\n{indent(body, _TAB)}"
    other = _CALLEE if "M.move" in WAYS[way] else ""
    text = filled(_MODULE).replace("{other}", indent(filled(other), _TAB))
    return tvm.script.from_source(text.replace("{body}", indent(body, _TAB * 2)))


def arguments(dtype: str) -> tuple[Any, Any]:
    """Return ``A``, and what ``O`` is after all rounds."""
    numbers = np.arange(LENGTH * ROUNDS) * 7 % 13
    given = numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    numbers = given.astype(result_type(dtype))
    backwards = numbers.reshape(ROUNDS, LENGTH)[:, ::-1].reshape(-1)
    return given, 2 * numbers + backwards


def rounds_of(place: str) -> int:
    """Return how often a kernel runs in a place."""
    return ROUNDS if "for k" in PLACES[place] else 1


# What kernels call


@tvm.register_global_func("tvm_ext.matrix.copy", override=True)
def _copy(to: Any, source: Any) -> None:
    source.copyto(to)


@tvm.register_global_func("tvm_ext.matrix.move", override=True)
def _move(to: Any, source: Any, count: int) -> None:
    ctypes.memmove(to, source, count)


@cache
def load_c_functions() -> None:
    """Compile what kernels call by the C interface of packed functions, and load it."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "move.c"), Path(folder, "move.so")
        source.write_text(_C_FUNCTIONS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_C_FUNCTIONS = """
#include <stdint.h>
#include <string.h>
typedef struct { int32_t type_index, padding; union { void* pointer; int64_t number; }; } Any;
int tvm_ext_matrix_move(void* self, const Any* args, int32_t count, Any* result) {
  memmove(args[0].pointer, args[1].pointer, args[2].number);
  return 0;
}
int __tvm_ffi_tvm_ext_matrix_move(void* self, const Any* args, int32_t count, Any* result) {
  return tvm_ext_matrix_move(self, args, count, result);  // What TVM's C calls it
}
"""
