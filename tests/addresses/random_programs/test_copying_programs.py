# SPDX-License-Identifier: Apache-2.0
"""Copies that run by themselves: what they read and write stays until they are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from address_buffers import LENGTH
from address_programs import ProgramBuilder, program_inputs
from address_replay import Replay
from address_runs import addresses
from hypothesis import note
from hypothesis import strategies as st
from program_parts import call, cast, loop
from program_text import program
from sweeps import swept
from tvm import tirx
from tvm.ir import Call, GlobalVar, Op, PointerType, PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, Evaluate, Let, SeqStmt, Var
from tvm.tirx.stmt import AttrStmt

from passes.addresses.transform import PlanAddresses, plan_addresses
from passes.ir import operators
from passes.prim_func.problems import ProblemOptions
from passes.storage_rewrite.transform import StorageRewrite

COPIES = (
    "tirx.dma_copy",
    "tirx.nvshmem.getmem_nbi",
    "tirx.ptx.cp_async_bulk_g2s_cta",
    "tirx.ptx.cp_async_ca",
    "tirx.ptx.cp_reduce_async_bulk_s2g",
    "tirx.ptx.st_async",
)
"""Operators that may go on when they have returned; here all are given (to, from, bytes)."""

WAIT = "tirx.dma_wait"
_ZERO = tirx.const(0)


class CopyingBuilder(ProgramBuilder):
    """Draws programs whose copies end at a wait, with other buffers made in between."""

    def copy(self, scope: Any, depth: int) -> list[Any]:
        source = self.newest(scope)
        if source is None:
            return []
        buffer, alloc = self.like(source)
        size = LENGTH * buffer.ty.dtype.dtype.bits // 8
        start, wait = self.pick((self.by_call, self.by_call, self.by_attribute))(
            buffer, source, size
        )
        if self.pick((True, False)):
            start = loop(Var(self.name("once"), PrimType("int32")), 1, start)
        between = [*self.filled_like(source), *self.map(scope.inner(), depth)]
        if any(source.same_as(b) for b in scope.readable[1:]) and self.pick((True, False)):
            scope.readable[1:] = [b for b in scope.readable[1:] if not b.same_as(source)]
        scope.readable.append(buffer)
        return [alloc, start, *between, wait]

    def filled_like(self, source: Any) -> list[Any]:
        """A buffer that would fit where the source is, and that nothing reads."""
        buffer, alloc = self.like(source)
        i = Var(self.name("i"), PrimType("int32"))
        value = cast(i + 50, str(buffer.ty.dtype.dtype))
        return [alloc, loop(i, LENGTH, BufferStore(buffer, value, [i]))]

    def by_call(self, buffer: Any, source: Any, size: int) -> tuple[Any, Any]:
        pointer = self.pointer(source)
        name, to = self.pick(COPIES), self.pointer(buffer)
        if self.random.random() < 0.4:
            address = tirx.reinterpret("int64", source.data)
            var = Var(self.name("q"), PrimType("int64"))
            begun = Let(var, address, call(name, to, var, size))
        else:
            begun = call(name, to, pointer, size)
        return Evaluate(begun), Evaluate(call(WAIT, 0))

    def by_attribute(self, buffer: Any, source: Any, _size: int) -> tuple[Any, Any]:
        i = Var(self.name("i"), PrimType("int32"))
        body = loop(i, LENGTH, BufferStore(buffer, BufferLoad(source, [i]), [i]))
        start = AttrStmt(_ZERO, "async_scope", tirx.const(1), body)
        if self.pick((True, False)):
            start = AttrStmt(_ZERO, "async_commit_queue_scope", _ZERO, start)
        return start, AttrStmt(_ZERO, "async_wait_queue_scope", _ZERO, Evaluate(_ZERO))


class CopyingReplay(Replay):
    """Lets each copy read and write when it starts, and once more when it is waited for."""

    def __init__(self, func: Any, plan: Any) -> None:
        super().__init__(func, plan)
        self._pending: list[Callable[[], None]] = []
        self._statements[AttrStmt] = self._attr

    def _begin(self, copy: Callable[[], None]) -> None:
        copy()
        self._pending.append(copy)

    def _wait(self) -> None:
        pending, self._pending = self._pending, []
        for copy in pending:
            copy()

    def _attr(self, op: Any) -> None:
        if op.attr_key == "async_scope":
            self._begin(lambda: self._run(op.body))
        else:
            if op.attr_key == "async_wait_queue_scope":
                self._wait()
            self._run(op.body)

    def _value(self, op: Any) -> Any:
        if isinstance(op, Let):
            self._values[op.var.__chandle__()] = self._value(op.value)
            return self._value(op.body)
        return super()._value(op)

    def _call(self, op: Any) -> Any:
        name = str(op.op.name)
        if name == WAIT:
            return self._wait()
        if name == "tirx.reinterpret":
            return self._value(op.args[0])
        if name not in COPIES:
            return super()._call(op)
        (to, to_at), (source, source_at) = self._value(op.args[0]), self._value(op.args[1])
        count = int(self._value(op.args[2]))

        def copy() -> None:
            data: np.ndarray = source.read(source_at, count)
            to.write(to_at, data.copy())
            self.num_checked += count

        return self._begin(copy)


def copying_programs() -> st.SearchStrategy[tvm.IRModule]:
    """Programs that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: CopyingBuilder(random).build())


@swept(6, 600, copying_programs(), st.booleans())
def test_no_copy_is_overtaken(mod: tvm.IRModule, addressed: bool):
    note(mod.script())
    plan = plan_addresses(mod["main"], "first_fit", ProblemOptions(addressed=addressed))
    CopyingReplay(mod["main"], plan)(program_inputs(0))


def test_the_table_names_operators_that_exist():
    assert set(map(str, Op.list_op_names())) >= operators._SYNCHRONOUS


def test_most_asynchronous_operators_are_told_by_what_is_not_said():
    names = [str(name) for name in Op.list_op_names() if str(name).startswith("tirx.")]
    marks = ("async", "_nbi", "dma_", "wgmma", "tcgen05", "mbarrier", "fabric", "bulk")
    lasting = [name for name in names if not operators.is_synchronous(name)]
    assert [name for name in names if any(mark in name for mark in marks)] == [
        name for name in lasting if any(mark in name for mark in marks)
    ]


copied = program("""
def copied(x: 16, y: 16):
    a, b, c: global 16
    a[i] = x[i] for i in range(16)
    with T.attr(0, "async_scope", 1):
        b[i] = a[i] for i in range(16)
    c[i] = x[15 - i] for i in range(16)
    y[i] = c[i] for i in range(16)
    with T.attr(0, "async_wait_queue_scope", 0):
        y[i] = y[i] + b[i] for i in range(16)
""")


STARTED = {
    "operator": lambda a, b: call("tirx.dma_copy", b.data, a.data, 64),
    "function": lambda a, b: Call(GlobalVar("start"), [a.data, b.data], ret_ty="void"),
    "name of a function": lambda a, b: tirx.call_extern("int32", "start", a.data, b.data),
}


@pytest.mark.parametrize("how", STARTED)
def test_a_copy_that_is_started_elsewhere_goes_on(how: str):
    x, a, b, c = (tirx.decl_buffer([16], "float32", name, layout=None) for name in "xabc")
    i = Var("i", PrimType("int32"))
    body = [
        *map(AllocBuffer, (a, b, c)),
        loop(i, 16, BufferStore(a, BufferLoad(x, [i]), [i])),
        Evaluate(STARTED[how](a, b)),
        loop(i, 16, BufferStore(c, BufferLoad(x, [15 - i]), [i])),
        Evaluate(call("tirx.dma_wait", 0)),
        loop(i, 16, BufferStore(x, BufferLoad(b, [i]) + BufferLoad(c, [i]), [i])),
    ]
    source, target = (Var(name, PointerType(PrimType("float32"))) for name in ("source", "target"))
    ours = call("tirx.dma_copy", target, source, 64)
    start = tirx.PrimFunc([source, target], Evaluate(ours)).with_attr("global_symbol", "start")
    main = tirx.PrimFunc([x], SeqStmt(body)).with_attr("global_symbol", "main")
    planned = PlanAddresses()(tvm.IRModule({"main": main, "start": start}))["main"]
    places = addresses(planned)
    assert places["a"] != places["c"]
    assert len(places) == 3


def test_sound_storage_rewrite_leaves_copied_memory_alone():
    mod = tvm.IRModule({"main": copied})
    for sound, count in ((False, 2), (True, 3)):
        assert StorageRewrite(sound=sound)(mod).script().count("T.alloc_buffer") == count
