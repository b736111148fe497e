# SPDX-License-Identifier: Apache-2.0
"""A plain model of the memory of TVM's Relax virtual machine: its registers, frames and pool.

A function is a list of steps. A register refers to storages; a storage is in use from the step that
allocates it until no register refers to it any more, and a function that returns drops all of its
registers. Its result stays in a register of the machine until another function returns.

The pooled allocator (``src/runtime/memory/pooled_allocator.h``) rounds a request up to pages, and
hands what was given back out again to a request of as many pages, and to no other. So it takes from
the device, of each number of pages, as many blocks as are in use at one time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from passes.gmem.planning.pieces import PAGE

Symbols = Mapping[int, int]  # The value of each symbolic dimension, by a key of the reader's
Extent = Callable[[Symbols], int]  # A number that symbolic dimensions decide


@dataclass(frozen=True)
class Field:
    """A field of a tuple."""

    whole: Operand
    index: int


Operand = int | Field | tuple["Operand", ...] | None
"""What a step reads: a register, a field of a tuple, a new tuple, or nothing with memory in it."""


@dataclass(frozen=True)
class Allocate:
    """Allocate a storage of so many bytes on a device."""

    register: int
    nbytes: Extent
    device: int


@dataclass(frozen=True)
class Refer:
    """Let a register refer to what an operand refers to."""

    register: int
    operand: Operand


@dataclass(frozen=True)
class Drop:
    """Empty a register."""

    register: int


@dataclass(frozen=True)
class Learn:
    """Give symbolic dimensions values."""

    symbols: tuple[tuple[int, Extent], ...]


@dataclass(frozen=True)
class Call:
    """Call a function; its dimensions follow from those of the arguments."""

    register: int
    function: str
    arguments: tuple[Operand, ...]
    symbols: tuple[tuple[int, Extent], ...]


@dataclass(frozen=True)
class Branch:
    """Take one of two ways."""

    register: int
    ways: tuple[Body, Body]


Step = Allocate | Refer | Drop | Learn | Call | Branch


@dataclass(frozen=True)
class Body:
    """Steps, and what they result in."""

    steps: tuple[Step, ...]
    result: Operand


@dataclass(frozen=True)
class Function:
    """A function of the machine."""

    parameters: tuple[int, ...]  # Their registers
    symbols: Mapping[int, str]  # The names of the symbolic dimensions of its signature, by key
    body: Body  # What it does


class UnknownMemoryError(ValueError):
    """Why it cannot be said what a program takes."""


class UndefinedRegisterError(UnknownMemoryError):
    """A program reads a register that nothing on its path has written."""


Blocks = Counter[tuple[int, int]]
"""By device and bytes of whole pages, how many such blocks there are. What two runs take, one after
the other, is the union of what each takes."""


def pooled(blocks: Blocks) -> int:
    """Return the bytes of blocks, which pooled allocators take from devices."""
    return sum(size * count for (_, size), count in blocks.items())


def block(device: int, nbytes: int) -> tuple[int, int]:
    """Return the block that serves a request."""
    return device, -(-nbytes // PAGE) * PAGE


_DEEPEST = 64  # Calls within calls that are followed
_Storage = tuple[int, int, int]  # Its number, its device and its bytes

_Value = _Storage | list["_Value"] | None
"""What a register refers to; a list is a tuple of the program."""


class Run:
    """One call of a function."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        decisions: Sequence[bool],
        sizes: Mapping[str, int],
        default: int = 1,
        host: int | None = None,
    ) -> None:
        self.taken: Blocks = Counter()
        self.met = 0
        self._functions, self._decisions = functions, decisions
        self._sizes, self._default, self._host = sizes, default, host
        self._references: Counter[int] = Counter()
        self._blocks: Blocks = Counter()
        self._made = 0
        self._returned: _Value = None
        self._depth = 0

    def __call__(self, name: str) -> Run:
        """Call a function whose arguments are the caller's own memory."""
        function = self._functions[name]
        known = {key: self._sizes.get(n, self._default) for key, n in function.symbols.items()}
        symbols = self._symbols(known)
        self._release(self._function(function, [None] * len(function.parameters), symbols))
        return self

    def _function(
        self, function: Function, arguments: list[_Value], symbols: dict[int, int]
    ) -> _Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnknownMemoryError("functions that call one another without end")
        registers: dict[int, _Value] = {}
        for register, value in zip(function.parameters, arguments, strict=True):
            self._set(registers, register, value)
        if function.symbols and self._host is not None:  # They are kept in the host's memory.
            self._set(registers, -1, self._allocate(1, self._host))
        result = self._body(function.body, registers, symbols)
        self._hold(result)
        self._release(self._returned)
        self._returned = result
        for value in registers.values():
            self._release(value)
        self._depth -= 1
        return result

    def _body(self, body: Body, registers: dict[int, _Value], symbols: dict[int, int]) -> _Value:
        """Run steps; the result has a reference of its own."""
        for step in body.steps:
            if isinstance(step, Allocate):
                storage = self._allocate(step.nbytes(symbols), step.device)
                self._set(registers, step.register, storage)
            elif isinstance(step, Refer):
                self._set(registers, step.register, self._read(registers, step.operand))
            elif isinstance(step, Drop):
                self._release(registers.pop(step.register, None))
            elif isinstance(step, Learn):
                symbols.update({key: extent(symbols) for key, extent in step.symbols})
            elif isinstance(step, Call):
                self._set_held(registers, step.register, self._call(step, registers, symbols))
            else:
                way = step.ways[0 if self._decide() else 1]
                self._set_held(registers, step.register, self._body(way, registers, symbols))
        result = self._read(registers, body.result)
        self._hold(result)
        return result

    def _decide(self) -> bool:
        self.met += 1
        return self.met <= len(self._decisions) and self._decisions[self.met - 1]

    def _call(self, step: Call, registers: dict[int, _Value], symbols: dict[int, int]) -> _Value:
        arguments = [self._read(registers, argument) for argument in step.arguments]
        inner = self._symbols({key: extent(symbols) for key, extent in step.symbols})
        return self._function(self._functions[step.function], arguments, inner)

    def _symbols(self, known: Symbols) -> dict[int, int]:
        """Return values of dimensions, with one for those that only the running program knows."""
        return defaultdict(lambda: self._default, known)

    # Registers

    def _read(self, registers: Mapping[int, _Value], operand: Operand) -> _Value:
        if operand is None:
            return None
        if isinstance(operand, tuple):
            return [self._read(registers, one) for one in operand]
        if isinstance(operand, Field):
            whole = self._read(registers, operand.whole)
            return whole[operand.index] if isinstance(whole, list) else None
        if operand not in registers:
            raise UndefinedRegisterError("a register is read that nothing has written")
        return registers[operand]

    def _set(self, registers: dict[int, _Value], register: int, value: _Value) -> None:
        self._hold(value)
        self._set_held(registers, register, value)

    def _set_held(self, registers: dict[int, _Value], register: int, value: _Value) -> None:
        self._release(registers.get(register))
        registers[register] = value

    # Storages

    def _allocate(self, nbytes: int, device: int) -> _Storage:
        self._made += 1
        key = block(device, nbytes)
        self._blocks[key] += 1
        self.taken[key] = max(self.taken[key], self._blocks[key])
        return self._made, device, nbytes

    def _hold(self, value: _Value) -> None:
        for storage in _storages(value):
            self._references[storage[0]] += 1

    def _release(self, value: _Value) -> None:
        for number, device, nbytes in _storages(value):
            self._references[number] -= 1
            if not self._references[number]:
                self._blocks[block(device, nbytes)] -= 1


def _storages(value: _Value) -> Sequence[_Storage]:
    if isinstance(value, list):
        return [storage for part in value for storage in _storages(part)]
    return [] if value is None else [value]


def paths(
    functions: Mapping[str, Function],
    name: str,
    sizes: Mapping[str, int],
    most: int,
    default: int = 1,
    host: int | None = None,
) -> dict[tuple[bool, ...], Blocks | None]:
    """Run a function on each of its paths, and return what each takes."""
    found: dict[tuple[bool, ...], Blocks | None] = {}
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        if len(found) == most:
            raise UnknownMemoryError(f"more than {most} paths")
        decisions = pending.pop()
        run = Run(functions, decisions, sizes, default, host)
        try:
            taken: Blocks | None = run(name).taken
        except UndefinedRegisterError:
            taken = None
        path = decisions + (False,) * (run.met - len(decisions))
        pending += [(*path[:at], True) for at in range(len(decisions), len(path))]
        found[path] = taken
    return found
