# SPDX-License-Identifier: Apache-2.0
"""Programs of many small loops, written in few lines."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Iterable, Iterator
from textwrap import dedent

import tvm
from tvm.tirx import PrimFunc

_DEFINITION = re.compile(r"def (\w+)\((.*)\)(?: on (\d+) x (\d+))?:")
_BUFFER = re.compile(r"(\w+): ([\dx]+)(?: (\w+))?")
_PARAMETER = re.compile(r"\w+: [^,]+")
_ALLOCATIONS = re.compile(r"( *)(\w[\w, ]*): ([a-z]+(?:\.\w+)?) ([\dx]+)(?: (\w+))?(?: (\{.*\}))?")
_LOOP = re.compile(r"( *)(.+?) (for \w[\w, ]* in [\w.]+\(.*\))")


def program(text: str) -> PrimFunc:
    """Return a function in TVMScript, of which some lines are short for two or more.

    ``def main(x: 64, y: 8x64 int32):`` are buffers by their shapes and types, which are `float32`
    where none is given; ``a, b: local.UB 64 int8`` allocates some in a storage scope, with the
    annotations that stand behind. A statement may stand in front of the loop around it:
    ``a[i] = x[i] for i in range(64)``. A kernel ``def main(x: 64) on 1 x 64:`` has so many blocks
    ``bx`` and threads ``tx``.
    """
    return tvm.script.from_source(program_source(text))


class Programs(UserDict[str, PrimFunc]):
    """Functions by name, each parsed when it is asked for: workers import all, and run a part."""

    def __getitem__(self, name: str) -> PrimFunc:
        func = self.data[name]
        if isinstance(func, str):
            func = self.data[name] = program(func)
        return func


def programs(text: str) -> Programs:
    """Return several functions as `program` takes them, by name."""
    parts = re.split(r"^(?=def )", dedent(text).strip("\n"), flags=re.MULTILINE)
    return Programs({part[4 : part.index("(")]: part for part in filter(None, parts)})


def cases(text: str) -> dict[str, str]:
    """Return the statements under each headline ``# name`` of a text, by name."""
    parts = (part.partition("\n") for part in text.strip("\n").removeprefix("# ").split("\n# "))
    return {name: statements.rstrip() for name, _, statements in parts}


def program_source(text: str) -> str:
    """Return what `program` parses."""
    head, *body = dedent(text).strip("\n").splitlines()
    found = _DEFINITION.fullmatch(head)
    assert found, head
    parameters = map(_parameter, _PARAMETER.findall(found[2]))
    lines = ["@T.prim_func(s_tir=True)", f"def {found[1]}({', '.join(parameters)}):"]
    for name, axis, count in (("bx", "block", found[3]), ("tx", "thread", found[4])):
        lines += [f'    {name} = T.launch_thread("{axis}Idx.x", {count})'] if count else []
    return "\n".join([*lines, *expanded(body)])


def _parameter(text: str) -> str:
    found = _BUFFER.fullmatch(text)
    return f"{found[1]}: T.Buffer({_array(found[2], found[3])})" if found else text


def expanded(text: Iterable[str]) -> Iterator[str]:
    """Yield lines of TVMScript, of which those that are short for several are written out."""
    for line in text:
        if found := _ALLOCATIONS.fullmatch(line):
            space, names, scope, *array, annotations = found.groups()
            noted = f", annotations={annotations}" if annotations else ""
            made = f'T.alloc_buffer({_array(*array)}, scope="{scope}"{noted})'
            yield from (f"{space}{buffer} = {made}" for buffer in names.split(", "))
        elif found := _LOOP.fullmatch(line):
            yield from (f"{found[1]}{found[3]}:", f"{found[1]}    {found[2]}")
        else:
            yield line


def _array(shape: str, dtype: str | None) -> str:
    extents = "".join(f"{extent}, " for extent in shape.split("x"))
    return f'({extents}), "{dtype or "float32"}"'
