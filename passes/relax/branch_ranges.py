# SPDX-License-Identifier: Apache-2.0
"""Live ranges in a program of nested `if` branches, from where its values are touched.

Positions number the bindings in program order: that of an `if` first, then those of its branch
for true, then those of its branch for false, then what follows. A path through the program takes
one of the two, so a value that one branch alone needs does not live in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from passes.planning import LiveRange, join_ranges


@dataclass(eq=False)
class Block:
    """A run of bindings: a function's body or one branch."""

    # Half-open range of positions, with those of all blocks within.
    start: int
    end: int = 0
    # The first and the last touch of each value that is touched in here or in a block within.
    touched: dict[int, tuple[Touch, Touch]] = field(default_factory=dict)


@dataclass(eq=False)
class Branches:
    """An `if`: its own position, and its two blocks, which follow at once."""

    position: int
    blocks: list[Block] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position behind both blocks."""
        return self.blocks[-1].end


Touch = int | Branches  # Where a block touches a value: at a position of its own, or within an `if`


class BlockStack:
    """The blocks that are open while a program is read, outermost first."""

    def __init__(self) -> None:
        self.root = Block(0)
        self._open: list[tuple[Block, Branches | None]] = [(self.root, None)]

    def enter(self, branches: Branches, start: int) -> None:
        """Open the next block of an `if`."""
        block = Block(start)
        branches.blocks.append(block)
        self._open.append((block, branches))

    def leave(self, end: int) -> None:
        """Close the innermost block."""
        block, _ = self._open.pop()
        block.end = end

    def touch(self, value: int, position: int) -> None:
        """Note that the binding at a position reads or writes a value."""
        event: Touch = position
        for block, branches in reversed(self._open):
            first, _ = block.touched.get(value, (event, event))
            block.touched[value] = first, event
            if branches is not None:
                event = branches


def live_ranges(block: Block, value: int) -> tuple[LiveRange, ...]:
    """Return where a value lives: between two touches on one path, both included."""
    return join_ranges(_ranges(block, value, before=False, after=False))


def _ranges(block: Block, value: int, *, before: bool, after: bool) -> Iterator[LiveRange]:
    """Yield the ranges within a block; the value may be touched `before` it and `after` it."""
    if value not in block.touched:
        if before and after and block.start < block.end:
            yield block.start, block.end
        return
    first, last = block.touched[value]
    begins = first if isinstance(first, int) else first.end
    ends = last if isinstance(last, int) else last.position
    begin = block.start if before else begins
    end = block.end if after else ends + 1
    if begin < end:
        yield begin, end
    # Between its first and its last touch a value lives on all paths, so the only branches to
    # look into are those where it begins and those where it ends.
    if isinstance(first, Branches) and not before:
        for branch in first.blocks:
            yield from _ranges(branch, value, before=False, after=after or last is not first)
    if isinstance(last, Branches) and not after and (before or last is not first):
        for branch in last.blocks:
            yield from _ranges(branch, value, before=True, after=False)
