# SPDX-License-Identifier: Apache-2.0
"""Runs modules step by step whose functions call one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from address_replay import Replay
from tvm.ir import GlobalVar
from tvm.tirx import PrimFunc, is_buffer_var


class ModuleReplay(Replay):
    """Runs the function ``main`` of a module, and what it calls.

    Allocations that have addresses are in one memory a scope; others have memory of their own.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {str(var.name_hint): mod[var] for var in mod.get_global_vars()}
        self._memories: dict[str, np.ndarray] = {}
        super().__init__(self._functions["main"], _NoPlan)

    def _alloc(self, op: Any) -> None:
        super()._alloc(op)
        ty = op.buffer.ty
        memory = self._memory[op.buffer.__chandle__()]
        if len(ty.allocated_addr):
            begin = int(ty.allocated_addr[0])
            all_bytes = self._memories.setdefault(
                str(ty.storage_scope), np.full(1 << 16, 0xA5, dtype="uint8")
            )
            memory.shared = all_bytes[begin : begin + len(memory.own)]

    def _call(self, op: Any) -> Any:
        name = str(op.op.name_hint) if isinstance(op.op, GlobalVar) else str(op.op.name)
        args = list(op.args)
        if name in ("tirx.call_extern", "tirx.tvm_call_packed"):
            name, args = str(args[0].value), args[1:]
        if name not in self._functions:
            return super()._call(op)
        func: PrimFunc = self._functions[name]
        for param, arg in zip(func.params, args, strict=True):
            assert not is_buffer_var(param)
            given = self._value(arg)
            self._values[param.__chandle__()] = given
            self._memory[param.__chandle__()], _ = given
        self._run(func.body)
        return None


class _NoPlan:
    scopes = ()
