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

from passes.gmem.planning.pool import PAGE

Symbols = Mapping[int, int]  # The value of each symbolic dimension, by a key of the reader's
Extent = Callable[[Symbols], int]  # A number that symbolic dimensions decide


_Storage = tuple[int, int, int]  # Its number, its device and its bytes

Value = _Storage | list["Value"] | None
"""What a register refers to; a list is a tuple of the program."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What one call of a function has."""

    registers: dict[int, Value]
    symbols: dict[int, int]  # The values of the symbolic dimensions

    def read(self, register: int) -> Value:
        """Return what a register refers to."""
        if register not in self.registers:
            raise UndefinedRegisterError("a register is read that nothing has written")
        return self.registers[register]


Operand = Callable[[Frame], Value]  # What a step reads
Step = Callable[["Run", Frame], None]


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
    storages: tuple[Extent, ...]  # The bytes of all that it can allocate


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
        self._returned: Value = None
        self._depth = 0

    def __call__(self, name: str) -> Run:
        """Call a function whose arguments are the caller's own memory."""
        function = self._functions[name]
        known = {key: self._sizes.get(n, self._default) for key, n in function.symbols.items()}
        symbols = self._symbols(known)
        self._release(self._function(function, [None] * len(function.parameters), symbols))
        return self

    def _function(
        self, function: Function, arguments: list[Value], symbols: dict[int, int]
    ) -> Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnknownMemoryError("functions that call one another without end")
        frame = Frame({}, symbols)
        for register, value in zip(function.parameters, arguments, strict=True):
            self.refer(frame, register, value)
        if function.symbols and self._host is not None:  # They are kept in the host's memory.
            self.allocate(frame, -1, 1, self._host)
        result = self._body(function.body, frame)
        self._hold(result)
        self._release(self._returned)
        self._returned = result
        for value in frame.registers.values():
            self._release(value)
        self._depth -= 1
        return result

    def _body(self, body: Body, frame: Frame) -> Value:
        """Run steps; the result has a reference of its own."""
        for step in body.steps:
            step(self, frame)
        result = body.result(frame)
        self._hold(result)
        return result

    def _symbols(self, known: Symbols) -> dict[int, int]:
        """Return values of dimensions, with one for those that only the running program knows."""
        return defaultdict(lambda: self._default, known)

    # Steps

    def allocate(self, frame: Frame, register: int, nbytes: int, device: int) -> None:
        """Allocate a storage of so many bytes on a device."""
        self._made += 1
        key = block(device, nbytes)
        self._blocks[key] += 1
        self.taken[key] = max(self.taken[key], self._blocks[key])
        self.refer(frame, register, (self._made, device, nbytes))

    def refer(self, frame: Frame, register: int, value: Value) -> None:
        """Let a register refer to a value."""
        self._hold(value)
        self._set_held(frame, register, value)

    def drop(self, frame: Frame, register: int) -> None:
        """Empty a register."""
        self._release(frame.registers.pop(register, None))

    def call(
        self, frame: Frame, register: int, name: str, arguments: list[Value], symbols: Symbols
    ) -> None:
        """Call a function, with the values of its dimensions that follow from the arguments."""
        result = self._function(self._functions[name], arguments, self._symbols(symbols))
        self._set_held(frame, register, result)

    def branch(self, frame: Frame, register: int, ways: tuple[Body, Body]) -> None:
        """Take one of two ways."""
        self.met += 1
        taken = self.met <= len(self._decisions) and self._decisions[self.met - 1]
        self._set_held(frame, register, self._body(ways[0 if taken else 1], frame))

    def _set_held(self, frame: Frame, register: int, value: Value) -> None:
        self._release(frame.registers.get(register))
        frame.registers[register] = value

    def _hold(self, value: Value) -> None:
        for storage in _storages(value):
            self._references[storage[0]] += 1

    def _release(self, value: Value) -> None:
        for number, device, nbytes in _storages(value):
            self._references[number] -= 1
            if not self._references[number]:
                self._blocks[block(device, nbytes)] -= 1


def _storages(value: Value) -> Sequence[_Storage]:
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
