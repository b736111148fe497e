# SPDX-License-Identifier: Apache-2.0
"""Runs a lowered kernel thread by thread, and says where two threads meet in a byte.

The kernel is translated to Python, a generator for each thread that yields at a barrier. Between
two barriers the threads run one after the other, in an order that is given, so what nothing orders
happens in another order each time. Shared memory knows of each byte who wrote it, by which name,
and who touched it since the last barrier: a thread that meets another's write there, or reads what
was written by another name, is a `FaultError`. So is who touches what an asynchronous copy may yet
write. The lanes of a warp exchange values where they meet. It shares no code with the analysis that
it judges.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tagged_bytes import FaultError, SharedMemory
from tvm import tirx
from tvm.ir import StringImm, TensorLoad
from tvm.ir.expr import Call
from tvm.tirx.stmt import AttrStmt


def replay(
    kernel: tirx.PrimFunc,
    arguments: Mapping[str, Any],
    grid: Sequence[int],
    order: str = "forward",
    memory: type[SharedMemory] = SharedMemory,
) -> None:
    """Run a kernel on arguments by name: numbers, and flat arrays, into which it writes.

    `grid` is the number of blocks along each axis, in the order of the launch. `order` is that of
    the threads between two barriers: forward, backward or random.
    """
    program = _Program(kernel)
    given = [arguments[param.name.removesuffix("_ptr")] for param in kernel.params]
    chosen = random.Random(0)
    for block in _grid(dict(zip(program.blocks, grid, strict=True))):
        shared = memory()
        threads = {_number(thread, program.threads): thread for thread in _grid(program.threads)}
        running = {at: program.run(block, t, at, shared, *given) for at, t in threads.items()}
        while running:
            numbers = sorted(running, reverse=order == "backward")
            if order == "random":
                chosen.shuffle(numbers)
            met = _run_to_barriers(running, numbers)
            if len(set(met.values())) > 1:
                barriers = sorted(set(met.values()), key=str)
                raise FaultError(f"threads wait at different barriers: {barriers}")
            if None in met.values():
                break
            shared.meet()


class _Touched(SharedMemory):
    """Memory without values, which knows who touched each byte since the last barrier."""

    def read(self, thread: int, memory: Any, at: int, width: int, name: str) -> int:
        self.note_read(thread, memory, range(at, at + width), name)
        return 0

    def read_all(self, size: int, thread: int, memory: Any, at: int, _width: int, name: str) -> int:
        return self.read(thread, memory, at, size, name)

    def write(self, thread: int, memory: Any, at: int, width: int, name: str, _value: Any) -> None:
        self.note_write(thread, memory, range(at, at + width), name, is_same=False)


def races(func: tirx.PrimFunc) -> bool:
    """Whether two threads touch one byte between the same barriers, and one of them writes it.

    They run at their own pace, so nothing orders their accesses, whatever they write.
    """
    arguments = {str(p.name).removesuffix("_ptr"): np.zeros(1 << 12) for p in func.params}
    try:
        replay(func, arguments, (1,), memory=_Touched)
    except FaultError:
        return True
    return False


def _number(thread: Mapping[str, int], extents: Mapping[str, Any]) -> int:
    """Return the number of a thread, as warps count them: x runs fastest."""
    number = 0
    for axis in "zyx":
        tag = f"threadIdx.{axis}"
        number = number * int(extents.get(tag, 1)) + thread.get(tag, 0)
    return number


def _run_to_barriers(running: Mapping[int, Any], numbers: list[int]) -> dict[int, int | None]:
    """Run threads until each is at a barrier, and return at which; None at its end.

    Where a thread asks for the value of another lane, it waits until all of its warp do or are at a
    barrier. A lane that does not take part has the asking one's own value.
    """
    met: dict[int, int | None] = {}
    given: dict[int, Any] = {}
    while numbers:
        asked: dict[int, Any] = {}
        for number in numbers:
            try:
                at = running[number].send(given.pop(number, None))
            except StopIteration:
                at = None
            (asked if isinstance(at, tuple) else met)[number] = at
        for number, (site, lane, value) in asked.items():
            other = asked.get(number // 32 * 32 + lane)
            given[number] = other[2] if other is not None and other[0] == site else value
        numbers = list(asked)
    return met


def _grid(extents: dict[str, Any]) -> Iterator[dict[str, int]]:
    for numbers in np.ndindex(*map(int, extents.values())):
        yield dict(zip(extents, map(int, numbers), strict=True))


class _Program:
    """A kernel as Python."""

    def __init__(self, kernel: tirx.PrimFunc) -> None:
        self.blocks: dict[str, Any] = {}
        self.threads: dict[str, Any] = {}
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.kept: list[Any] = []
        # By the handle of a buffer: the kind of its memory, and the name that stands for it.
        self.places: dict[int, tuple[str, str]] = {}
        self.memories = 0
        self.barriers = 0
        params = [self._name(param) for param in kernel.params]
        for param, name in zip(kernel.params, params, strict=True):
            self.places[param.__chandle__()] = "global", name
        self._statement(kernel.body, 1)
        head = f"def run({', '.join(['_block', '_thread', '_t', '_sh', *params])}):"
        source = "\n".join([head, *self.lines, "    if False: yield"])
        space: dict[str, Any] = dict(_FUNCTIONS)
        exec(compile(source, "<kernel>", "exec"), space)
        self.run: Callable[..., Iterator[int]] = space["run"]

    def _name(self, var: Any) -> str:
        key = var.__chandle__()
        if key not in self.names:
            self.kept.append(var)
            self.names[key] = re.sub(r"\W", "_", var.name) + f"_v{len(self.names)}"
        return self.names[key]

    def _add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    # Statements

    def _statement(self, op: Any, depth: int) -> None:
        if isinstance(op, tirx.SeqStmt):
            for inner in op.seq:
                self._statement(inner, depth)
        elif isinstance(op, AttrStmt):
            if op.attr_key == "thread_extent":
                tag = str(op.node.thread_tag)
                is_block = tag.startswith("blockIdx")
                (self.blocks if is_block else self.threads)[tag] = getattr(op.value, "value", None)
                source = "_block" if is_block else "_thread"
                self._add(depth, f"{self._name(op.node.var)} = {source}[{tag!r}]")
            if op.attr_key == "async_wait_queue_scope":
                self._add(depth, f"_sh.wait(_t, {self._expr(op.body.value)})")
            self._statement(op.body, depth)
            if op.attr_key == "async_commit_queue_scope":
                self._add(depth, "_sh.commit(_t)")
        elif isinstance(op, tirx.AllocBuffer):
            scope = str(op.buffer.ty.storage_scope)
            if scope.startswith("shared"):
                self.places[op.buffer.__chandle__()] = "shared", self._memory(op.buffer.ty)
            else:
                name = self._name(op.buffer)
                self._add(depth, f"{name} = _Registers()")
                self.places[op.buffer.__chandle__()] = "local", name
        elif isinstance(op, tirx.DeclBuffer):
            source = op.data.args[0] if isinstance(op.data, Call) else op.data
            self.kept.append(op.buffer)
            self.places[op.buffer.__chandle__()] = self.places[source.__chandle__()]
        elif isinstance(op, tirx.Bind):
            self._add(depth, f"{self._name(op.var)} = {self._expr(op.value)}")
        elif isinstance(op, tirx.BufferStore):
            self._store(op, depth)
        elif isinstance(op, tirx.For):
            low = self._expr(op.min)
            count = f"range({low}, {low} + {self._expr(op.extent)})"
            self._add(depth, f"for {self._name(op.loop_var)} in {count}:")
            self._body(op.body, depth)
        elif isinstance(op, tirx.While):
            self._add(depth, f"while {self._expr(op.condition)}:")
            self._body(op.body, depth)
        elif isinstance(op, tirx.IfThenElse):
            self._add(depth, f"if {self._expr(op.condition)}:")
            self._body(op.then_case, depth)
            if op.else_case is not None:
                self._add(depth, "else:")
                self._body(op.else_case, depth)
        elif isinstance(op, tirx.Evaluate):
            self._evaluate(op.value, depth)
        elif not isinstance(op, tirx.AssertStmt):
            raise NotImplementedError(type(op).__name__)

    def _memory(self, ty: Any) -> str:
        """Return where a buffer begins: in its own memory, or at its address in its scope's."""
        if len(ty.allocated_addr):
            return f"{str(ty.storage_scope)!r}, {int(ty.allocated_addr[0])}"
        self.memories += 1
        return f"{self.memories}, 0"

    def _body(self, op: Any, depth: int) -> None:
        self._add(depth + 1, "pass")
        self._statement(op, depth + 1)

    def _evaluate(self, value: Any, depth: int) -> None:
        if isinstance(value, Call) and str(value.op.name) == "tirx.tvm_storage_sync":
            if str(value.args[0].value) != "warp":
                self._add(depth, f"yield {self.barriers}")
                self.barriers += 1
        elif isinstance(value, Call):
            self._add(depth, self._expr(value))

    def _store(self, op: Any, depth: int) -> None:
        indices = self._elements(op.buffer, op.indices[0])
        lanes = op.value.ty.dtype.lanes
        values = [self._expr(op.value)] if lanes == 1 else [f"_x[{i}]" for i in range(lanes)]
        if lanes > 1:
            self._add(depth, f"_x = {self._expr(op.value)}")
        kind, place = self.places[op.buffer.__chandle__()]
        places = indices if isinstance(indices, list) else [indices]
        for index, value in zip(places, values, strict=False):
            if kind == "shared":
                access = self._access(op.buffer, place, index)
                self._add(depth, f"_sh.write({access}, {value})")
            else:
                self._add(depth, f"{place}[{index}] = {value}")

    def _access(self, buffer: Any, memory: str, index: str) -> str:
        width = -(-buffer.ty.dtype.dtype.bits // 8)
        return f"_t, {memory} + ({index}) * {width}, {width}, {buffer.name!r}"

    def _elements(self, buffer: Any, index: Any) -> Any:
        """Return the scalar indices of an access, as text: one, or a list of them."""
        wide, lanes = buffer.ty.dtype.dtype.lanes, index.ty.dtype.lanes
        text = self._expr(index)
        if lanes == 1 and wide == 1:
            return text
        bases = [text] if lanes == 1 else [f"({text})[{i}]" for i in range(lanes)]
        return [f"({base}) * {wide} + {i}" for base in bases for i in range(wide)]

    # Expressions

    def _expr(self, op: Any) -> str:
        lanes = op.ty.dtype.lanes if hasattr(op.ty, "dtype") else 1
        if isinstance(op, tirx.IntImm | tirx.FloatImm):
            return _constant(op.value)
        if isinstance(op, StringImm):
            return repr(str(op.value))
        if isinstance(op, tirx.Var):
            return self._name(op)
        if type(op) in _BINARY:
            return _lanewise(_BINARY[type(op)], lanes, self._expr(op.a), self._expr(op.b))
        if isinstance(op, tirx.Not):
            return _lanewise("not {}", lanes, self._expr(op.a))
        if isinstance(op, tirx.BitwiseNot):
            return _lanewise("~{}", lanes, self._expr(op.a))
        if isinstance(op, tirx.Cast):
            bits = op.ty.dtype
            kind = "int({})" if "int" in str(bits) else "float({})"
            kind = "bool({})" if "bool" in str(bits) else kind
            return _lanewise(kind, lanes, self._expr(op.value))
        if isinstance(op, tirx.Ramp):
            base, stride = self._expr(op.base), self._expr(op.stride)
            return f"[({base}) + ({stride}) * _i for _i in range({lanes})]"
        if isinstance(op, tirx.Broadcast):
            return f"[{self._expr(op.value)}] * {lanes}"
        if isinstance(op, tirx.Select):
            return self._choice(op.condition, op.true_value, op.false_value, lanes)
        if isinstance(op, tirx.Let):
            return f"(lambda {self._name(op.var)}: {self._expr(op.body)})({self._expr(op.value)})"
        if isinstance(op, TensorLoad):
            return self._load(op)
        if isinstance(op, Call):
            return self._call(op, lanes)
        raise NotImplementedError(type(op).__name__)

    def _choice(self, condition: Any, yes: Any, no: Any, lanes: int) -> str:
        parts = [self._expr(yes), self._expr(condition), self._expr(no)]
        if lanes > 1 and condition.ty.dtype.lanes > 1:
            return _lanewise("({} if {} else {})", lanes, *parts)
        return "(({}) if ({}) else ({}))".format(*parts)

    def _load(self, op: TensorLoad) -> str:
        kind, place = self.places[op.source.__chandle__()]
        indices = self._elements(op.source, op.indices[0])
        several = indices if isinstance(indices, list) else [indices]
        if kind == "shared":
            parts = [f"_sh.read({self._access(op.source, place, index)})" for index in several]
        else:
            parts = [f"{place}[{index}]" for index in several]
        if kind == "global":
            parts = [f"{part}.item()" for part in parts]
        return f"[{', '.join(parts)}]" if isinstance(indices, list) else parts[0]

    def _call(self, op: Call, lanes: int) -> str:
        name = str(op.op.name).partition(".")[2]
        if name in ("likely", "tvm_thread_invariant"):
            return self._expr(op.args[0])
        if name == "if_then_else":
            return self._choice(*op.args, lanes)
        if name == "call_extern" and str(op.args[0].value) == "atomic_add":
            load = op.args[1].args[0]
            kind, place = self.places[load.source.__chandle__()]
            access = self._access(load.source, place, self._expr(load.indices[0]))
            assert kind == "shared"
            return f"_sh.add({access}, {self._expr(op.args[2])})"
        if name == "call_extern" and str(op.args[0].value) == "reads":
            pointer, size = op.args[1], int(op.args[2].value)
            load = pointer.args[0] if str(pointer.op.name).endswith("address_of") else None
            buffer = pointer.args[0] if load is None else load.source
            index = "0" if load is None else self._expr(load.indices[0])
            access = self._access(buffer, self.places[buffer.__chandle__()][1], index)
            return f"_sh.read_all({size}, {access})"
        if name == "s_tir.cp_async_raw":
            return self._copy(op)
        if name.startswith("ptx.cp_async_"):
            counts = {"commit_group": "", "wait_group": ", ".join(map(self._expr, op.args))}
            counts["wait_all"] = "-1"
            what = name.removeprefix("ptx.cp_async_")
            return f"_sh.{what.partition('_')[0]}(_t, {counts[what]})"
        if name in _LANES:
            # What a lane asks for: where, which lane, and what it has itself.
            value, by, width = map(self._expr, op.args[1:4])
            self.barriers += 1
            lane = f"_t % 32 // {width} * {width} + {_LANES[name].format(by=by, width=width)}"
            return f"(yield ({self.barriers}, {lane}, {value}))"
        args = list(op.args)
        if name in ("call_extern", "call_pure_extern"):
            name = str(args.pop(0).value)
        if name not in _FUNCTIONS:
            raise NotImplementedError(name)
        holes = ", ".join("{}" for _ in args)
        return _lanewise(f"{name}({holes})", lanes, *map(self._expr, args))

    def _copy(self, op: Call) -> str:
        (to, at, source, first), size = op.args[:4], int(op.args[4].value)
        kind, place = self.places[source.args[0].__chandle__()]
        width = -(-to.args[0].ty.dtype.dtype.bits // 8)
        begin = self._expr(first)
        values = f"[{place}[{begin} + _i].item() for _i in range({size // width})]"
        assert kind == "global"
        _, memory = self.places[to.args[0].__chandle__()]
        return f"_sh.copy({self._access(to.args[0], memory, self._expr(at))}, {values})"


def _constant(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return f"({value!r})"


def _lanewise(text: str, lanes: int, *parts: str) -> str:
    if lanes == 1:
        return "(" + text.format(*(f"({part})" for part in parts)) + ")"
    names = [f"_a{i}" for i in range(len(parts))]
    zipped = ", ".join(parts)
    return f"[{text.format(*names)} for {', '.join(names)}, in zip({zipped})]"


def _safely(function: Callable[..., float]) -> Callable[..., float]:
    def call(*args: float) -> float:
        try:
            return float(function(*args))
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return call


_LANES = {
    "tvm_warp_shuffle": "{by} % {width}",
    "tvm_warp_shuffle_up": "max(_t % {width} - {by}, 0)",
    "tvm_warp_shuffle_down": "min(_t % {width} + {by}, {width} - 1)",
}
"""Operators that ask for the value of another lane, and which one."""


class _Registers(dict[int, Any]):
    """What a thread has for itself: anything, before it sets it."""

    def __missing__(self, _index: int) -> float:
        return math.nan


_FUNCTIONS: dict[str, Any] = {
    "_Registers": _Registers,
    **{
        name: _safely(getattr(math, name))
        for name in ("exp", "log", "log2", "sqrt", "sin", "cos", "tanh", "pow", "erf", "fabs")
    },
    "tvm_warp_activemask": lambda: 0xFFFFFFFF,
    "exp2": _safely(lambda x: 2.0**x),
    "rsqrt": _safely(lambda x: 1 / math.sqrt(x)),
    "_truncated": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "_divided": lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
}

_BINARY: dict[type, str] = {
    tirx.Add: "{} + {}",
    tirx.Sub: "{} - {}",
    tirx.Mul: "{} * {}",
    tirx.FloorDiv: "{} // {}",
    tirx.FloorMod: "{} % {}",
    tirx.Mod: "math_fmod({}, {})",
    tirx.Div: "_quotient({}, {})",
    tirx.Min: "min({}, {})",
    tirx.Max: "max({}, {})",
    tirx.EQ: "{} == {}",
    tirx.NE: "{} != {}",
    tirx.LT: "{} < {}",
    tirx.LE: "{} <= {}",
    tirx.GT: "{} > {}",
    tirx.GE: "{} >= {}",
    tirx.And: "{} and {}",
    tirx.Or: "{} or {}",
    tirx.LShift: "{} << {}",
    tirx.RShift: "{} >> {}",
    tirx.BitwiseAnd: "{} & {}",
    tirx.BitwiseOr: "{} | {}",
    tirx.BitwiseXor: "{} ^ {}",
}
_FUNCTIONS["math_fmod"] = lambda a, b: type(a)(math.fmod(a, b))
_FUNCTIONS["_quotient"] = lambda a, b: (
    _FUNCTIONS["_truncated"](a, b) if isinstance(a, int) else _FUNCTIONS["_divided"](a, b)
)
