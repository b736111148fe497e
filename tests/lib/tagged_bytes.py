# SPDX-License-Identifier: Apache-2.0
"""The shared memory of one block of threads, which knows of each byte who touched it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


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
    # The bytes to which a thread's copies are on their way, and these copies, by thread: those of
    # the group that is open, behind them the groups that were committed.
    coming: dict[tuple[int, int], int] = field(default_factory=dict)
    copies: dict[int, list[list[tuple[Any, ...]]]] = field(default_factory=dict)

    def meet(self) -> None:
        self.readers.clear()
        self.writers.clear()

    def read(self, thread: int, memory: int, at: int, width: int, name: str) -> Any:
        self.note_read(thread, memory, range(at, at + width), name)
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
        self.note_write(thread, memory, range(at, at + width), name, is_same)
        for byte in range(at + 1, at + width):
            self.cells.pop((memory, byte), None)
        for before in range(1, 16):  # What it overlaps from the left is gone.
            other = self.cells.get((memory, at - before))
            if other is not None and other.width > before:
                del self.cells[memory, at - before]
        self.cells[memory, at] = _Cell(width, value, name)

    def note_read(self, thread: int, memory: Any, places: range, name: str) -> None:
        for byte in places:
            key = memory, byte
            self._check_arrived(key, name)
            if self.writers.get(key, thread) != thread:
                raise FaultError(f"{name}: thread {thread} reads byte {byte} that another writes")
            if self.readers.setdefault(key, thread) != thread:
                self.readers[key] = -1

    def note_write(self, thread: int, memory: Any, places: range, name: str, is_same: bool) -> None:
        for byte in places:
            key = memory, byte
            self._check_arrived(key, name)
            if self.readers.get(key, thread) != thread:
                raise FaultError(f"{name}: thread {thread} writes byte {byte} that another reads")
            if self.writers.setdefault(key, thread) != thread:
                if not is_same:
                    raise FaultError(f"{name}: thread {thread} writes byte {byte} as another does")
                self.writers[key] = -1

    def copy(self, thread: int, memory: int, at: int, width: int, name: str, values: Any) -> None:
        """Begin to copy elements: they arrive some time before they are waited for."""
        groups = self.copies.setdefault(thread, [[]])
        groups[0].append((memory, at, width, name, values))
        for byte in range(at, at + width * len(values)):
            self._check_arrived((memory, byte), name)
            for others in (self.readers, self.writers):
                if others.get((memory, byte), thread) != thread:
                    raise FaultError(f"{name}: a copy to byte {byte}, which another thread uses")
            self.coming[memory, byte] = thread

    def commit(self, thread: int) -> None:
        self.copies.setdefault(thread, [[]]).insert(0, [])

    def wait(self, thread: int, left: int) -> None:
        """Wait until so many groups are on their way at most; -1 waits for the open one too."""
        groups = self.copies.setdefault(thread, [[]])
        while len(groups) > left + 1:
            for memory, at, width, name, values in groups.pop():
                for place, value in enumerate(values):
                    begin = at + place * width
                    for byte in range(begin, begin + width):
                        del self.coming[memory, byte]
                    self.write(thread, memory, begin, width, name, value)
        if not groups:
            groups.append([])

    def _check_arrived(self, key: tuple[int, int], name: str) -> None:
        if key in self.coming:
            raise FaultError(f"{name}: byte {key[1]}, to which a copy is on its way")

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
