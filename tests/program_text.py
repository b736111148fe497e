# SPDX-License-Identifier: Apache-2.0
"""Programs of many small loops, written in few lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import dedent

import tvm
from tvm.tirx import PrimFunc

_BUFFER = re.compile(r"(\w+): ([\dx]+)(?: (\w+))?")
_ALLOCATIONS = re.compile(r"( *)(\w[\w, ]*): ([a-z]+(?:\.\w+)?) ([\dx]+)(?: (\w+))?")
_LOOP = re.compile(r"( *)(.+?) (for \w+ in [\w.]+\(.*\))")


def program(text: str) -> PrimFunc:
    """Return a function in TVMScript, of which some lines are short for two or more.

    ``def main(x: 64, y: 8x64 int32):`` are buffers by their shapes and types, which are `float32`
    where none is given; ``a, b: local.UB 64 int8`` allocates some in a storage scope. A statement
    may stand in front of the loop around it: ``a[i] = x[i] for i in range(64)``.
    """
    head, *body = dedent(text).strip("\n").splitlines()
    name, _, given = head.removeprefix("def ").removesuffix("):").partition("(")
    buffers = [found.groups() for found in map(_BUFFER.fullmatch, given.split(", ")) if found]
    parameters = [f"{buffer}: T.Buffer({_array(*array)})" for buffer, *array in buffers]
    lines = ["@T.prim_func(s_tir=True)", f"def {name}({', '.join(parameters)}):"]
    return tvm.script.from_source("\n".join([*lines, *expanded(body)]))


def expanded(text: Iterable[str]) -> Iterator[str]:
    """Yield lines of TVMScript, of which those that are short for several are written out."""
    for line in text:
        if found := _ALLOCATIONS.fullmatch(line):
            space, names, scope, *array = found.groups()
            made = f'T.alloc_buffer({_array(*array)}, scope="{scope}")'
            yield from (f"{space}{buffer} = {made}" for buffer in names.split(", "))
        elif found := _LOOP.fullmatch(line):
            yield from (f"{found[1]}{found[3]}:", f"{found[1]}    {found[2]}")
        else:
            yield line


def _array(shape: str, dtype: str | None) -> str:
    extents = "".join(f"{extent}, " for extent in shape.split("x"))
    return f'({extents}), "{dtype or "float32"}"'
