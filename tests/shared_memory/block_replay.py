# SPDX-License-Identifier: Apache-2.0
"""Runs a lowered kernel thread by thread, and says where two threads meet in a byte.

The kernel is translated to Python, a generator for each thread that yields at a barrier. Between
two barriers the threads run one after the other, in an order that is given, so what nothing orders
happens in another order each time. Shared memory knows of each byte who wrote it, by which name,
and who touched it since the last barrier: a thread that meets another's write there, or reads what
was written by another name, is a `FaultError`. It shares no code with the analysis that it judges.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import StringImm, TensorLoad
from tvm.ir.expr import Call
from tvm.tirx.stmt import AttrStmt


class FaultError(Exception):
    """What the threads of a block may not do."""


_NAME = re.compile(r"_\d+$")


@dataclass
class _Cell:
    """What is at one place of shared memory."""

    width: int
    value: Any
    name: str


@dataclass
class SharedMemory:
    """The shared memory of one block, byte by byte."""

    cells: dict[tuple[int, int], _Cell] = field(default_factory=dict)  # By memory and offset
    # Who read and who wrote each byte since the last barrier: a thread, or -1 for several.
    readers: dict[tuple[int, int], int] = field(default_factory=dict)
    writers: dict[tuple[int, int], int] = field(default_factory=dict)

    def meet(self) -> None:
        self.readers.clear()
        self.writers.clear()

    def read(self, thread: int, memory: int, at: int, width: int, name: str) -> Any:
        for byte in range(at, at + width):
            key = memory, byte
            if self.writers.get(key, thread) != thread:
                raise FaultError(f"{name}: thread {thread} reads byte {byte} that another writes")
            if self.readers.setdefault(key, thread) != thread:
                self.readers[key] = -1
        cell = self.cells.get((memory, at))
        if cell is None:
            raise FaultError(f"{name}: thread {thread} reads byte {at}, which nobody wrote")
        if cell.width != width or cell.name != _NAME.sub("", name):
            raise FaultError(f"{name}: thread {thread} reads byte {at}, written as {cell.name}")
        return cell.value

    def write(self, thread: int, memory: int, at: int, width: int, name: str, value: Any) -> None:
        cell = self.cells.get((memory, at))
        name = _NAME.sub("", name)
        # Several threads may write one value, as TVM lets them.
        is_same = cell is not None and (cell.name, cell.width) == (name, width)
        is_same = is_same and cell is not None and cell.value == value
        for byte in range(at, at + width):
            key = memory, byte
            if self.readers.get(key, thread) != thread:
                raise FaultError(f"{name}: thread {thread} writes byte {byte} that another reads")
            if self.writers.setdefault(key, thread) != thread:
                if not is_same:
                    raise FaultError(f"{name}: thread {thread} writes byte {byte} as another does")
                self.writers[key] = -1
            if byte != at:
                self.cells.pop(key, None)
        for before in range(1, 16):  # What it overlaps from the left is gone.
            other = self.cells.get((memory, at - before))
            if other is not None and other.width > before:
                del self.cells[memory, at - before]
        self.cells[memory, at] = _Cell(width, value, name)

    def add(self, _thread: int, memory: int, at: int, width: int, name: str, value: Any) -> Any:
        """Add atomically: atomic accesses do not race with one another."""
        key = memory, at
        if self.readers.get(key, -2) != -2 or self.writers.get(key, -2) not in (-2, -3):
            raise FaultError(f"{name}: an atomic access meets another one at byte {at}")
        for byte in range(at, at + width):
            self.writers[memory, byte] = -3
        cell = self.cells[key]
        before = cell.value
        self.cells[key] = _Cell(width, before + value, _NAME.sub("", name))
        return before


def replay(
    kernel: tirx.PrimFunc,
    arguments: Mapping[str, Any],
    grid: Sequence[int],
    order: str = "forward",
) -> None:
    """Run a kernel on arguments by name: numbers, and flat arrays, into which it writes.

    `grid` is the number of blocks along each axis, in the order of the launch. `order` is that of
    the threads between two barriers: forward, backward or random.
    """
    program = _Program(kernel)
    given = [arguments[param.name.removesuffix("_ptr")] for param in kernel.params]
    chosen = random.Random(0)
    for block in _grid(dict(zip(program.blocks, grid, strict=True))):
        shared = SharedMemory()
        threads = list(_grid(program.threads))
        running = {
            at: program.start(given, block, thread, at, shared) for at, thread in enumerate(threads)
        }
        while running:
            numbers = list(running)
            if order == "backward":
                numbers.reverse()
            elif order == "random":
                chosen.shuffle(numbers)
            met = {number: next(running[number], None) for number in numbers}
            if len(set(met.values())) > 1:
                raise FaultError(
                    f"threads wait at different barriers: {sorted(set(met.values()), key=str)}"
                )
            if None in met.values():
                break
            shared.meet()


def _grid(extents: dict[str, Any]) -> Iterator[dict[str, int]]:
    sizes = [range(int(extent)) for extent in extents.values()]
    for numbers in np.ndindex(*[len(size) for size in sizes]):
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
        head = ", ".join(["_block", "_thread", "_t", "_sh", *params])
        source = "\n".join([f"def run({head}):", *self.lines, "    if False: yield"])
        space: dict[str, Any] = dict(_FUNCTIONS)
        exec(compile(source, "<kernel>", "exec"), space)
        self.run: Callable[..., Iterator[int]] = space["run"]

    def start(
        self, arguments: Sequence[Any], block: Any, thread: Any, number: int, shared: SharedMemory
    ) -> Iterator[int]:
        return self.run(block, thread, number, shared, *arguments)

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
            self._statement(op.body, depth)
        elif isinstance(op, tirx.AllocBuffer):
            scope = str(op.buffer.ty.storage_scope)
            if scope.startswith("shared"):
                self.places[op.buffer.__chandle__()] = "shared", str(self.memories)
                self.memories += 1
            else:
                name = self._name(op.buffer)
                self._add(depth, f"{name} = {{}}")
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
        values = [f"{self._expr(op.value)}"] if lanes == 1 else [f"_x[{i}]" for i in range(lanes)]
        if lanes > 1:
            self._add(depth, f"_x = {self._expr(op.value)}")
        kind, place = self.places[op.buffer.__chandle__()]
        for at, index in enumerate(indices if isinstance(indices, list) else [indices]):
            value = values[at]
            if kind == "shared":
                access = self._access(op.buffer, place, index)
                self._add(depth, f"_sh.write({access}, {value})")
            else:
                self._add(depth, f"{place}[{index}] = {value}")

    def _access(self, buffer: Any, memory: str, index: str) -> str:
        width = -(-buffer.ty.dtype.dtype.bits // 8)
        return f"_t, {memory}, ({index}) * {width}, {width}, {buffer.name!r}"

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
            return _number(op.value)
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
        args = list(op.args)
        if name in ("call_extern", "call_pure_extern"):
            name = str(args.pop(0).value)
        if name not in _FUNCTIONS:
            raise NotImplementedError(name)
        holes = ", ".join("{}" for _ in args)
        return _lanewise(f"{name}({holes})", lanes, *map(self._expr, args))


def _number(value: Any) -> str:
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


_FUNCTIONS: dict[str, Any] = {
    **{
        name: _safely(getattr(math, name))
        for name in ("exp", "log", "log2", "sqrt", "sin", "cos", "tanh", "pow", "erf", "fabs")
    },
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
