# SPDX-License-Identifier: Apache-2.0
"""Random kernels for an Ascend core that run: loops, branches, slots, and work for every pipe.

What is read was written before, in the same iteration or, under a condition, in an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import tvm
from program_parts import cast, loop, sequence, twice_round
from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, DeclBuffer, IfThenElse, SeqStmt, Var
from tvm.tirx.stmt import AttrStmt

from passes.ascend.kernel import AscendOptions, plan_kernel
from passes.driver import AddressPlan

LENGTH = 8
"""Elements of a buffer, and of the arguments; there are `FACTORS` times as many in larger ones."""

FACTORS = (1, 1, 2, 3)
_MODULUS = 1009


def ascend_plan(func: tirx.PrimFunc, options: AscendOptions) -> AddressPlan:
    """Decide where each buffer of a function lives."""
    return plan_kernel(options.read(func), options)


@dataclass
class _Scope:
    """What a statement may use: filled buffers by scope, and the loop variables around it."""

    filled: dict[str, list[Any]] = field(default_factory=dict)
    counters: list[Any] = field(default_factory=list)

    def inner(self) -> _Scope:
        return _Scope({scope: list(all_) for scope, all_ in self.filled.items()}, [*self.counters])

    def of(self, scope: str) -> list[Any]:
        return self.filled.setdefault(scope, [])


class KernelBuilder:
    """Draws one function of two arrays to read and one that all results are added to."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = 0
        length = LENGTH * max(FACTORS)
        self.inputs = [
            tirx.decl_buffer([length], dtype, name, layout=None)
            for name, dtype in (("x", "int32"), ("y", "int16"))
        ]
        self.out = tirx.decl_buffer([length], "int64", "out", layout=None)

    def pick(self, choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def build(self) -> tvm.IRModule:
        params = [*self.inputs, self.out]
        func = tirx.PrimFunc(params, sequence(self.block(_Scope(), 0)))
        func = func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
        return tvm.IRModule({"main": func})

    # Blocks

    def block(self, scope: _Scope, depth: int) -> list[Any]:
        made = self.load(scope, depth)
        kinds = [self.vector] * 4 + [self.load] * 3 + [self.store] * 2
        kinds += [self.reduce, self.scalar, self.accumulate, self.multiply, self.hand_over]
        kinds += [self.view, self.mixed]
        if depth < 2:
            kinds += [self.loop] * (3 - depth) + [self.branch, self.while_loop, self.carried]
        for _ in range(self.random.randint(2, 7 if depth == 0 else 4)):
            made += self.pick(kinds)(scope, depth)
        return made + self.store(scope, depth)

    def loop(self, scope: _Scope, depth: int) -> list[Any]:
        var = Var(self.name("k"), PrimType("int32"))
        inner = scope.inner()
        inner.counters.append(var)
        body = sequence(self.block(inner, depth + 1))
        return [loop(var, self.random.randint(2, 3), body, first=self.pick((0, 0, 1)))]

    def branch(self, scope: _Scope, depth: int) -> list[Any]:
        condition = BufferLoad(self.inputs[0], [tirx.const(1)]) < 1
        if scope.counters and self.chance(0.7):
            condition = self.pick(scope.counters) < 1
        then = sequence(self.block(scope.inner(), depth + 1))
        other = sequence(self.block(scope.inner(), depth + 1)) if self.chance(0.5) else None
        return [IfThenElse(condition, then, other)]

    def while_loop(self, scope: _Scope, depth: int) -> list[Any]:
        count = tirx.decl_buffer([1], "int32", self.name("n"), scope="local.UB", layout=None)
        return twice_round(count, self.block(scope.inner(), depth + 1))

    def carried(self, scope: _Scope, depth: int) -> list[Any]:
        """A loop that reads under a condition what its last iteration wrote at its end."""
        kept, alloc = self.allocate(scope, "local.UB", factor=1, single=True)
        var = Var(self.name("k"), PrimType("int32"))
        inner = scope.inner()
        inner.counters.append(var)
        first = self.pick((0, 1))
        body = self.load(inner, depth)
        result, made = self.allocate(inner, "local.UB", factor=1)
        i, j, k = (Var(self.name("i"), PrimType("int32")) for _ in range(3))
        body += [
            made,
            IfThenElse(
                tirx.LT(tirx.const(first), var),
                loop(i, LENGTH, BufferStore(result, BufferLoad(kept, [i]), [i])),
                loop(j, LENGTH, BufferStore(result, tirx.const(3), [j])),
            ),
        ]
        inner.of("local.UB").append(result)
        body += self.block(inner, depth + 1)
        source = self.pick([b for b in inner.of("local.UB") if str(b.ty.dtype.dtype) == "int32"])
        body.append(loop(k, LENGTH, BufferStore(kept, BufferLoad(source, [k]), [k])))
        return [alloc, loop(var, 3, sequence(body), first=first)]

    # Buffers

    def allocate(
        self, scope: _Scope, memory: str, dtype: str = "int32", factor: int = 0, single=False
    ) -> tuple[Any, Any]:
        length = LENGTH * (factor or self.pick(FACTORS))
        buffer = tirx.decl_buffer([length], dtype, self.name("b"), scope=memory, layout=None)
        annotations: dict[str, Any] = {}
        slots = self.pick((1, 1, 2, 2, 3)) if scope.counters and not single else 1
        if slots > 1:
            annotations["multi_buffer"] = slots
        if self.chance(0.04):
            annotations["mem_unique"] = True
        return buffer, AllocBuffer(buffer, annotations or None)

    def source(self, scope: _Scope, memory: str) -> Any:
        """One of the newest buffers in a memory; None where there is none."""
        filled = scope.of(memory)
        return self.pick(filled[-3:]) if filled else None

    def at(self, buffer: Any, i: Any, straight: bool = True) -> Any:
        """The element of a buffer for a result's element, as int32."""
        extent = int(buffer.ty.shape[0].value)
        index = i if straight else extent - 1 - i
        return cast(BufferLoad(buffer, [tirx.floormod(index, extent)]), "int32")

    def fill(self, scope: _Scope, memory: str, value: Any, **options: Any) -> list[Any]:
        """Allocate a buffer and fill it element by element."""
        buffer, alloc = self.allocate(scope, memory, **options)
        i = Var(self.name("i"), PrimType("int32"))
        computed = cast(value(i, int(buffer.ty.shape[0].value)), str(buffer.ty.dtype.dtype))
        nest = loop(i, int(buffer.ty.shape[0].value), BufferStore(buffer, computed, [i]))
        scope.of(memory).append(buffer)
        return [alloc, nest]

    # Statements

    def load(self, scope: _Scope, depth: int) -> list[Any]:
        source, shift = self.pick(self.inputs), self.pick((0, 1))
        if scope.counters:
            shift = shift + self.pick(scope.counters)
        length = LENGTH * max(FACTORS)

        def value(i: Any, _extent: int) -> Any:
            return BufferLoad(source, [tirx.floormod(i + shift, length)])

        dtype = str(source.ty.dtype.dtype)
        return self.fill(scope, self.pick(("local.UB", "local.UB", "local.L1")), value, dtype=dtype)

    def store(self, scope: _Scope, depth: int) -> list[Any]:
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        i = Var(self.name("i"), PrimType("int32"))
        total = BufferLoad(self.out, [i]) + cast(BufferLoad(source, [i]), "int64")
        return [loop(i, int(source.ty.shape[0].value), BufferStore(self.out, total, [i]))]

    def vector(self, scope: _Scope, depth: int) -> list[Any]:
        """One instruction on the newest buffers, often such that it could be in place."""
        first, second = (self.source(scope, "local.UB") for _ in range(2))
        if first is None:
            return []
        if self.chance(0.7):
            return self.like(scope, first, second)
        straight = self.chance(0.4)

        def value(i: Any, extent: int) -> Any:
            if int(first.ty.shape[0].value) != extent:
                return self.at(first, i)
            return self.at(first, i, straight) - self.at(second, i)

        return self.fill(scope, "local.UB", value, dtype=self.pick(("int32", "int16")))

    def like(self, scope: _Scope, first: Any, second: Any) -> list[Any]:
        extent, dtype = int(first.ty.shape[0].value), str(first.ty.dtype.dtype)
        same = int(second.ty.shape[0].value) == extent and str(second.ty.dtype.dtype) == dtype

        def value(i: Any, _extent: int) -> Any:
            one = BufferLoad(first, [i])
            other = BufferLoad(second, [i]) if same else tirx.const(5, dtype)
            return self.pick(
                (
                    lambda: tirx.max(one, other),
                    lambda: tirx.min(other, one),
                    lambda: tirx.floormod(one + other, tirx.const(_MODULUS, dtype)),
                    lambda: tirx.floormod(one * tirx.const(3, dtype), tirx.const(_MODULUS, dtype)),
                )
            )()

        made = self.fill(scope, "local.UB", value, dtype=dtype, factor=extent // LENGTH)
        if self.chance(0.2):
            made[1] = AttrStmt(0, "pipe", "V", made[1])
        return made

    def reduce(self, scope: _Scope, depth: int) -> list[Any]:
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        result, alloc = self.allocate(scope, "local.UB", factor=1)
        i, k = (Var(self.name("i"), PrimType("int32")) for _ in range(2))
        clear = BufferStore(result, tirx.const(-7), [i])
        most = tirx.max(BufferLoad(result, [i]), self.at(source, i + k))
        inner = loop(k, 4, BufferStore(result, most, [i]))
        scope.of("local.UB").append(result)
        return [alloc, loop(i, LENGTH, SeqStmt([clear, inner]))]

    def scalar(self, scope: _Scope, depth: int) -> list[Any]:
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        one = tirx.decl_buffer([1], "int32", self.name("s"), scope="local.UB", layout=None)
        zero = tirx.const(0)
        read = BufferStore(one, self.at(source, tirx.const(3)), [zero])

        def value(i: Any, _extent: int) -> Any:
            return tirx.max(self.at(source, i), BufferLoad(one, [zero]))

        return [AllocBuffer(one), read, *self.fill(scope, "local.UB", value)]

    def accumulate(self, scope: _Scope, depth: int) -> list[Any]:
        """Change a buffer from outside of the loop that this is in, maybe."""
        result, source = (self.pick(scope.of("local.UB") or [None]) for _ in range(2))
        if result is None:
            return []
        dtype = str(result.ty.dtype.dtype)
        i = Var(self.name("i"), PrimType("int32"))
        total = BufferLoad(result, [i]) + cast(self.at(source, i), dtype)
        limited = tirx.floormod(total, tirx.const(_MODULUS, dtype))
        return [loop(i, int(result.ty.shape[0].value), BufferStore(result, limited, [i]))]

    def mixed(self, scope: _Scope, depth: int) -> list[Any]:
        """Two results of one loop."""
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        (one, first), (two, second) = (self.allocate(scope, "local.UB", factor=1) for _ in range(2))
        i = Var(self.name("i"), PrimType("int32"))
        stores = [
            BufferStore(one, tirx.min(self.at(source, i), 4), [i]),
            BufferStore(two, tirx.max(self.at(source, i), 4), [i]),
        ]
        scope.of("local.UB").extend((one, two))
        return [first, second, loop(i, LENGTH, SeqStmt(stores))]

    def multiply(self, scope: _Scope, depth: int) -> list[Any]:
        """From L1 through the cube unit and back."""
        left, right = (self.source(scope, "local.L1") for _ in range(2))
        if left is None:
            return []
        made = self.fill(scope, "local.L0A", lambda i, _: self.at(left, i), factor=1)
        made += self.fill(scope, "local.L0B", lambda i, _: self.at(right, i, False), factor=1)
        a, b = (scope.of(f"local.{name}")[-1] for name in ("L0A", "L0B"))
        c, alloc = self.allocate(scope, "local.L0C", factor=1)
        i, k = (Var(self.name("i"), PrimType("int32")) for _ in range(2))
        product = tirx.min(self.at(a, i), 8) + tirx.min(self.at(b, i + k), 8)
        add = BufferStore(c, BufferLoad(c, [i]) + product, [i])
        first = IfThenElse(tirx.EQ(k, tirx.const(0)), BufferStore(c, tirx.const(0), [i]), None)
        nest = loop(i, LENGTH, loop(k, 2, SeqStmt([first, add])))
        target = self.pick(("local.UB", "local.UB", "global.workspace"))
        return [*made, alloc, nest, *self.fill(scope, target, lambda i, _: self.at(c, i), factor=1)]

    def hand_over(self, scope: _Scope, depth: int) -> list[Any]:
        """From on chip to the workspace, or from there."""
        source = self.source(scope, "global.workspace")
        if source is not None and self.chance(0.6):
            target = self.pick(("local.UB", "local.L1"))
            return self.fill(scope, target, lambda i, _: self.at(source, i))
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        return self.fill(scope, "global.workspace", lambda i, _: self.at(source, i))

    def view(self, scope: _Scope, depth: int) -> list[Any]:
        """Another name for a buffer, through which it is read later."""
        source = self.source(scope, "local.UB")
        if source is None:
            return []
        view = tirx.decl_buffer(
            list(source.ty.shape),
            source.ty.dtype,
            self.name("v"),
            scope="local.UB",
            layout=None,
        )
        scope.of("local.UB").append(view)
        return [DeclBuffer(view, data=source.data)]


def random_kernel(seed: int) -> tvm.IRModule:
    """Draw a module of one function from a seed."""
    return KernelBuilder(Random(seed)).build()
