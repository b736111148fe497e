# SPDX-License-Identifier: Apache-2.0
"""How far LLVM optimizes what tests build."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target
from tvm.tirx import AssertStmt, AttrStmt, Evaluate

DEFAULT, SWEEP = 0, 2
"""Levels of default runs and of sweeps. TVM's own, 3, assumes no more than 2 about which buffers
overlap, and takes twenty times as long on kernels whose inner loops are wide."""

_PACKED = 1
"""The calling convention of functions that take their arguments packed."""

_level = DEFAULT
_for_all = False


def set_level(level: int, *, for_all: bool = False) -> None:
    """Choose the level of what is built from now on: of what asks for it here, or of all."""
    global _level, _for_all
    _level, _for_all = level, for_all
    _llvm_module()  # Before its name gets another meaning.
    if shutil.which("ld"):
        tvm.register_global_func("target.build.llvm", _linked, override=True)


@cache
def _llvm_module() -> Any:
    """Return TVM's function that makes a module of LLVM."""
    return tvm.get_global_func("target.build.llvm")


def _linked(mod: tvm.IRModule, target: Target) -> Any:
    """Build a module of LLVM; at level 0, as a library that is linked and loaded.

    TVM's compiler at run time optimizes the machine's code as far as LLVM can, whatever the level:
    it takes three times as long as LLVM at level 0 and the linker do.
    """
    if _for_all:
        target = _with_level(target, _level)
    if target.export().get("opt-level") != DEFAULT:
        return _llvm_module()(mod, target)
    built = _llvm_module()(_unchecked(mod), target)
    with tempfile.TemporaryDirectory() as folder:
        code, library = (str(Path(folder, name)) for name in ("code.o", "code.so"))
        built.write_to_file(code, "o")
        subprocess.run(["ld", "-shared", "-Bsymbolic", "-o", library, code], check=True)
        return tvm.runtime.load_module(library)


def _unchecked(mod: tvm.IRModule) -> tvm.IRModule:
    """Take away what packed functions assert of their arguments before their bodies begin.

    That is most of the code of a small kernel. Where an argument is wrong, so are the numbers.
    """

    def on_attr(op: AttrStmt, mutator: Any) -> Any:
        return op if op.attr_key == "compute_scope" else mutator.default_mutate(op)

    handlers = [(AttrStmt, on_attr), (AssertStmt, lambda _op, _mutator: Evaluate(0))]
    functions = dict(mod.functions.items())
    for variable, func in functions.items():
        if func.attrs.get("calling_conv") == _PACKED:
            functions[variable] = func.with_body(tvm_ffi.structural_mutate(func.body, handlers))
    return tvm.IRModule(functions, attrs=mod.attrs)


def at_level(target: Any) -> Target:
    """Return a target for which LLVM optimizes as far as this run of the tests asks for.

    To compile at level 0 takes little more than half of the time. What LLVM makes of overlapping
    buffers is asked of higher levels by name, in a few tests, and in the sweeps of all others. A
    target that names a level keeps it.
    """
    target = Target(target)
    return _with_level(target, target.export().get("opt-level", _level))


def functions_at_level(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Return a module of TIR functions: those with a target of their own get a target's level."""
    if target.kind.name != "llvm":
        return mod
    functions = dict(mod.functions.items())
    for variable, func in functions.items():
        if func.attrs and "target" in func.attrs:
            own = _with_level(func.attrs["target"], target.export()["opt-level"])
            functions[variable] = func.with_attr("target", own)
    return tvm.IRModule(functions)


def _with_level(target: Target, level: int) -> Target:
    if target.kind.name != "llvm":
        return target
    return Target({**target.export(), "opt-level": level})
