# SPDX-License-Identifier: Apache-2.0
"""Check the plans of the suite, or a plan of your own, with nothing but Python's library.

    python benchmarks/suite/check.py [NAME ...]
    python benchmarks/suite/check.py NAME --plan FILE

Without a plan, that of the index is checked, which stands in the instance's own file. This shares
no code with any planner, and imports nothing of this project. README.md has the format.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from math import lcm
from pathlib import Path

HERE = Path(__file__).parent
INSTANCES, INDEX = HERE / "instances", HERE / "index.csv"

Life = tuple[tuple[int, ...], tuple[int, ...]]  # Begin and end, on each clock


@dataclass
class Row:
    """A buffer: sizes and offsets are bytes; several lives only on one clock."""

    name: str
    size: int
    lives: list[Life]
    alignment: int = 1
    slots: int = 1
    pinned: list[int] | None = None
    uses: int = 1
    offsets: list[int] = field(default_factory=list)
    memory: str = ""


@dataclass
class Instance:
    """Buffers, and what they share; a capacity and an alignment for each memory by name."""

    rows: list[Row]
    memories: dict[str, int | None]
    alignment: int = 1
    reserved: list[list[int]] = field(default_factory=list)
    in_place: list[list[str]] = field(default_factory=list)
    separations: list[list[str]] = field(default_factory=list)
    penalties: list[list[object]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether each buffer has one life on one clock, and no pair shares anything."""
        one_clock = all(len(r.lives) == 1 and len(r.lives[0][0]) == 1 for r in self.rows)
        return one_clock and not (self.in_place or self.separations or self.penalties)


def index() -> dict[str, dict[str, str]]:
    with INDEX.open(encoding="utf-8", newline="") as stream:
        return {row["name"]: row for row in csv.DictReader(stream)}


def load(path: Path, entry: Mapping[str, str]) -> Instance:
    """Read an instance, with the offsets in it, if there are any."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if ".json" in path.name:
        return of_document(json.loads(text))
    parts = [part.rpartition(":") for part in entry["memories"].split(",")]
    if len(parts) > 1:  # The last one, the slow one, has no bytes
        parts[-1] = (parts[-1][2], ":", "")
    memories = {name: int(size) if size else None for name, _, size in parts}
    rows, apart = [], []
    for cells in csv.DictReader(io.StringIO(text, newline="")):
        begin, end = (tuple(map(int, cells[c].split(":"))) for c in ("lower", "upper"))
        alignment, uses = int(cells.get("alignment") or 1), int(cells.get("uses") or 1)
        row = Row(cells["id"], int(cells["size"]), [(begin, end)], alignment, uses=uses)
        row.offsets = [int(cells["offset"])] if cells.get("offset") else []
        row.memory = cells.get("memory", "")
        apart += [[row.name, other] for other in cells.get("apart", "").split()]
        rows.append(row)
    return Instance(rows, memories, int(entry["alignment"]), separations=apart)


def of_document(given: dict) -> Instance:
    rows = []
    for cells in given["buffers"]:
        lives = [((begin,), (end,)) for begin, end in cells.get("live", ())]
        lives = lives or [(tuple(cells["begin"]), tuple(cells["end"]))]
        row = Row(cells["id"], cells["size"], lives, cells.get("alignment", 1))
        row.slots, row.pinned = cells.get("slots", 1), cells.get("pinned")
        row.offsets = cells.get("offsets", [])
        rows.append(row)
    memory = given.get("memory", {})
    pairs = [given.get(key, []) for key in ("in_place", "separations", "penalties")]
    limits = memory.get("alignment", 1), memory.get("reserved", [])
    return Instance(rows, {"": memory.get("capacity")}, *limits, *pairs)


def meet(one: Row, two: Row) -> bool:
    """Whether two buffers can be live at once: no life surely ends before the other begins."""
    return any(
        any(e > b for e, b in zip(first[1], second[0], strict=True))
        and any(e > b for e, b in zip(second[1], first[0], strict=True))
        for first, second in product(one.lives, two.lives)
    )


def shared(one: Row, two: Row) -> list[tuple[int, int]]:
    """Return the slots of two buffers that share a byte."""
    return [
        (k, m)
        for (k, a), (m, b) in product(enumerate(one.offsets), enumerate(two.offsets))
        if max(a, b) < min(a + one.size, b + two.size)
    ]


def faults(given: Instance) -> Iterator[str]:
    """Yield what is wrong with the offsets of an instance."""
    for row in given.rows:
        if len(row.offsets) != row.slots or row.memory not in given.memories:
            yield f"{row.name}: {len(row.offsets)} offsets for {row.slots} slots in {row.memory!r}"
            return
        capacity, alignment = given.memories[row.memory], lcm(row.alignment, given.alignment)
        if row.pinned is not None and row.pinned != row.offsets:
            yield f"{row.name}: pinned at {row.pinned}, placed at {row.offsets}"
        if any(a < b + row.size and b < a + row.size for a, b in combinations(row.offsets, 2)):
            yield f"{row.name}: its slots share bytes"
        for at in row.offsets:
            if at < 0 or at % alignment or (capacity is not None and at + row.size > capacity):
                yield f"{row.name}: at {at}, aligned to {alignment}, in {capacity} bytes"
            if any(max(at, low) < min(at + row.size, high) for low, high in given.reserved):
                yield f"{row.name}: at {at}, in reserved bytes"
    yield from (overlaps if given.is_plain else overlapping_pairs)(given)


def overlapping_pairs(given: Instance) -> Iterator[str]:
    """Yield overlaps, pair by pair."""
    in_place = {frozenset(pair) for pair in given.in_place}
    apart = {frozenset(pair) for pair in given.separations}
    for one, two in combinations([row for row in given.rows if row.size], 2):
        if one.memory != two.memory or not (slots := shared(one, two)):
            continue
        pair = frozenset((one.name, two.name))
        is_same = one.slots == two.slots and all(
            k == m and one.offsets[k] == two.offsets[m] for k, m in slots
        )
        if pair in apart or (meet(one, two) and not (pair in in_place and is_same)):
            yield f"{one.name} at {one.offsets} and {two.name} at {two.offsets} share bytes"


def overlaps(given: Instance) -> Iterator[str]:
    """Yield overlaps in a sweep over one clock: what is live is kept sorted by offset."""
    events = []
    for row in given.rows:
        ((begin,), (end,)) = row.lives[0]
        events += [(end, 0, row), (begin, 1, row)] if row.size else []
    live: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for _, begins, row in sorted(events, key=lambda event: event[:2]):
        here = live[row.memory]
        for at in row.offsets:
            piece = (at, at + row.size, row.name)
            place = bisect_left(here, piece)
            if not begins:
                del here[place]
                continue
            for other in here[max(0, place - 1) : place + 1]:
                if max(other[0], at) < min(other[1], piece[1]):
                    yield f"{row.name} at {at} and {other[2]} at {other[0]} share bytes"
                    return  # What follows relies on there being none
            insort(here, piece)


def penalty(given: Instance) -> int:
    """Return what the offsets pay for sharing."""
    rows, total = {row.name: row for row in given.rows}, 0
    for first, second, cost, *matched in given.penalties:
        one, two = rows[str(first)], rows[str(second)]
        if slots := shared(one, two):
            in_step = one.slots == two.slots and all(k == m for k, m in slots)
            total += int(str(matched[0] if matched and in_step else cost))
    return total


def value(given: Instance) -> int:
    """Return the peak; of several memories, the bytes that move over the bus of the slow ones."""
    if len(given.memories) == 1:
        return max((at + row.size for row in given.rows for at in row.offsets), default=0)
    fast = next(iter(given.memories))
    return sum(row.size * row.uses for row in given.rows if row.memory != fast)


def live_bytes(given: Instance) -> int:
    """Return the most bytes live when a buffer begins: no plan has a lower peak."""
    if given.in_place or len(given.memories) > 1:
        return 0
    sizes = [row.size * row.slots for row in given.rows]
    if all(len(row.lives[0][0]) == 1 for row in given.rows):
        changes: dict[int, int] = defaultdict(int)
        for row, size in zip(given.rows, sizes, strict=True):
            for (begin,), (end,) in row.lives:
                changes[begin] += size
                changes[end] -= size
        most = total = 0
        for at in sorted(changes):
            total += changes[at]
            most = max(most, total)
        return most
    most = 0
    for row in given.rows:
        moment = row.lives[0][0]
        there = (
            size
            for other, size in zip(given.rows, sizes, strict=True)
            for begin, end in other.lives
            if all(b <= m for b, m in zip(begin, moment, strict=True))
            and any(e > m for e, m in zip(end, moment, strict=True))
        )
        most = max(most, sum(there))
    return most


def wrong_claims(given: Instance, entry: Mapping[str, str]) -> Iterator[str]:
    """Yield what the index says of an instance's own plan, and is not so."""
    counted = live_bytes(given)
    said = {key: int(entry[key]) for key in ("bound", "penalty", "value")}
    if said["penalty"] != penalty(given) or said["value"] != value(given):
        yield f"the plan has penalty {penalty(given)} and value {value(given)}, not {said}"
    if not counted <= said["bound"] <= said["value"]:
        yield f"{counted} bytes are live at once, the bound is {said['bound']} of {said['value']}"
    if entry["proven"] == "live bytes" and (said["penalty"] or counted != said["value"]):
        yield f"{counted} bytes live at once prove nothing of {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--plan", type=Path, help="the instance's file with other offsets")
    arguments = parser.parse_args()
    known, wrong = index(), 0
    if arguments.plan and len(arguments.names) != 1:
        parser.error("a plan is one of one instance")
    for name in arguments.names or known:
        if name not in known:
            parser.error(f"no instance is called {name!r}")
        entry = known[name]
        given = load(arguments.plan or INSTANCES / entry["file"], entry)
        found = list(faults(given))
        if arguments.plan is None and not found:
            found = list(wrong_claims(given, entry))
        elif not found:
            print(f"{name}: penalty {penalty(given)}, value {value(given)}")
            print(f"known: penalty {entry['penalty']}, value {entry['value']} by {entry['by']}")
        wrong += bool(found)
        for each in found[:5]:
            print(f"{name}: {each}")
    print(f"{len(arguments.names or known)} plans, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
