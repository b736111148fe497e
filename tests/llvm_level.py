# SPDX-License-Identifier: Apache-2.0
"""How far LLVM optimizes what tests build."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.target import Target

DEFAULT, SWEEP = 0, 2
"""Levels of default runs and of sweeps. TVM's own, 3, assumes no more than 2 about which buffers
overlap, and takes twenty times as long on kernels whose inner loops are wide."""

_level = DEFAULT


def set_level(level: int) -> None:
    """Choose the level of what is built from now on."""
    global _level
    _level = level


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
