# SPDX-License-Identifier: Apache-2.0
"""How far LLVM optimizes what tests build."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.target import Target


def at_level_2(target: Any) -> Target:
    """Return a target for which LLVM optimizes at level 2.

    Level 3 is the default. It assumes no more than level 2 about which buffers overlap, and takes
    twenty times as long on kernels whose inner loops are wide.
    """
    target = Target(target)
    return Target({**target.export(), "opt-level": 2}) if target.kind.name == "llvm" else target


def functions_at_level_2(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of TIR functions, of which those that have a target have one of level 2."""
    functions = dict(mod.functions.items())
    for variable, func in functions.items():
        if func.attrs and "target" in func.attrs:
            functions[variable] = func.with_attr("target", at_level_2(func.attrs["target"]))
    return tvm.IRModule(functions)
