# SPDX-License-Identifier: Apache-2.0
"""Problems and plans as JSON, for what the columns of a table do not say.

An object with ``buffers`` and, where there are any, ``memory``, ``in_place``, ``separations`` and
``penalties``. All sizes are in bytes, all ranges half-open::

    {"memory": {"capacity": 4096, "alignment": 32, "reserved": [[0, 64]]},
     "buffers": [{"id": "a", "size": 64, "live": [[0, 2], [5, 7]], "alignment": 32,
                  "slots": 2, "pinned": [64, 128], "offsets": [64, 128]}],
     "in_place": [["a", "b"]], "separations": [["a", "c"]], "penalties": [["b", "c", 4, 2]]}

The pairs are those of `Problem`: source and destination in place; buffers that share no byte; and
buffers whose sharing costs something, if slots match perhaps less. On several clocks a buffer has
``begin`` and ``end`` in place of ``live``, each a position on every clock (see
`passes.planning.clocks`). ``offsets`` are a plan's, one a slot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from passes.planning.buffer import Buffer, Penalty
from passes.planning.clocks import concurrent_lives
from passes.planning.plan import Plan
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

_LISTS = {"in_place": (2,), "separations": (2,), "penalties": (3, 4)}
"""Lists of pairs, and how many entries a pair may have with its costs."""

_PLAIN = ("size", "alignment", "slots", "pinned")


class DocumentError(ValueError):
    """An error in a file, in one line that names the file."""


def read_document(
    text: str,
    name: str,
    *,
    capacity: int | None = None,
    alignment: int = 1,
    keep_offsets: bool = False,
) -> Problem:
    """Read a problem from JSON; `name` is for messages.

    A capacity, or an alignment other than 1, holds in place of the one in the text. With
    `keep_offsets`, buffers that have offsets stay there. Raises DocumentError if the text is no
    such object, has a key that means nothing here, or says what no problem can be.
    """
    try:
        given = json.loads(text, object_pairs_hook=_unique)
        _check_keys(given, {"memory", "buffers", *_LISTS}, "the object")
        memory = given.get("memory", {})
        _check_keys(memory, {"capacity", "alignment", "reserved"}, "memory")
        rows = given.get("buffers")
        if not isinstance(rows, list) or not rows:
            raise ValueError("buffers must be a list of one or more")
        for row in rows:
            _check_keys(row, {"id", *_PLAIN, "live", "begin", "end", "offsets"}, f"buffer {row!r}")
            if not isinstance(row.get("id"), str) or "size" not in row:
                raise ValueError(f"a buffer must have an id, which is a text, and a size: {row!r}")
        for key, counts in _LISTS.items():
            pairs = given.get(key, [])
            for each in pairs if isinstance(pairs, list) else [pairs]:
                if not isinstance(each, list) or len(each) not in counts:
                    what = "two ids" if counts == (2,) else "two ids, and one or two costs"
                    raise ValueError(f"{key} must be a list of lists of {what}, got {each!r}")
        live, separations = _lives(rows)
        whole = MemoryScope(
            "global",
            memory.get("capacity") if capacity is None else capacity,
            memory.get("alignment", 1) if alignment == 1 else alignment,
            reserved=tuple(map(tuple, memory.get("reserved", ()))),
        )
        return Problem(
            tuple(_buffer_of(row, live, keep_offsets) for row in rows),
            whole,
            tuple(map(tuple, given.get("in_place", ()))),
            tuple(_once(given.get("separations", ()), separations)),
            tuple(Penalty(*each) for each in given.get("penalties", ())),
            name,
        )
    except (ValueError, TypeError, RecursionError) as error:
        message = str(error).removeprefix(f"{name}: ")
        raise DocumentError(f"{name}: {message}") from error


def write_document(stream: TextIO, given: str, plan: Plan) -> None:
    """Write the text that a problem was read from, with the offsets of a plan."""
    document = json.loads(given)
    for row in document["buffers"]:
        row["offsets"] = list(plan.offsets[row["id"]])
    head = {key: value for key, value in document.items() if key != "buffers"}
    lines = ",\n ".join(json.dumps(row) for row in document["buffers"])
    stream.write(json.dumps(head)[:-1] + (", " if head else "") + f'"buffers": [\n {lines}\n]}}\n')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object that gives no key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(k for k in keys if keys.count(k) > 1)!r} is given twice")
    return found


def _check_keys(given: Any, known: set[str], what: str) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{what} must be a JSON object, got {given!r}")
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"{what} has unknown keys: {', '.join(unknown)}")


def _lives(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the live ranges of the buffers, and what is to be kept apart besides."""
    kinds = {" ".join(key for key in ("live", "begin", "end") if key in row) for row in rows}
    clocked = {row["id"]: (row["begin"], row["end"]) for row in rows if {"begin", "end"} <= {*row}}
    live = {row["id"]: row["live"] for row in rows if "live" in row}
    if kinds not in ({"live"}, {"begin end"}):
        raise ValueError("either all buffers must have live, or all of them begin and end")
    if not clocked:
        return live, ()
    sizes = {row["id"]: row["size"] * row.get("slots", 1) for row in rows}
    one_order, separations = concurrent_lives(clocked, sizes)
    return {name: (life,) for name, life in one_order.items()}, separations


def _buffer_of(row: Mapping[str, Any], live: Mapping[str, Any], keep_offsets: bool) -> Buffer:
    fields = {key: row[key] for key in _PLAIN if key in row}
    if keep_offsets and "offsets" in row:
        fields["pinned"] = row["offsets"]
    return Buffer(row["id"], live=live[row["id"]], **fields)


def _once(
    given: Iterable[Any], separations: Iterable[tuple[str, str]]
) -> Iterable[tuple[str, str]]:
    """Yield the pairs that are given, and those of the clocks that are not among them."""
    named: list[Any] = [tuple(pair) for pair in given]
    known = {frozenset(pair) for pair in named}
    yield from named
    yield from (pair for pair in separations if frozenset(pair) not in known)
