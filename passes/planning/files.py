# SPDX-License-Identifier: Apache-2.0
"""Problems and plans as the CSV of the public MiniMalloc benchmark.

One row a buffer, columns ``id,lower,upper,size`` and optionally ``alignment``, in any order: live
on the half-open range ``[lower, upper)``, size and alignment in bytes, such as ``4096`` or
``4KiB``. A plan adds ``offset``, which is passed over, or read as the positions of buffers that
stay where they are: those of rows in which it is not empty.

Where parts of a program run at once, ``lower`` and ``upper`` may have a position on each of several
clocks, with colons between, such as ``3:0`` (see `passes.planning.clocks`); and there may be a
column ``apart``: the ids of buffers that must share no byte with this one although they are not
live together, with spaces between. One of the two rows of a pair is enough.

For several memories there are more columns, which a problem of one memory passes over:

- ``uses``: how often a run writes or reads the whole buffer; 1 if there is no such column;
- ``touches``: the positions of these uses, ascending, with spaces between;
- ``allowed``: the memories that a buffer may lie in, with spaces between; empty for all;
- ``stored_in``: the memory that holds the value before the run, such as that of a weight.

A plan of them adds ``memory`` and ``offset``, and ``stays`` where buffers move: for each stay in a
faster memory ``MEMORY:OFFSET:BEGIN-END``, with spaces between. These are not read again.
"""

from __future__ import annotations

import csv
import gc
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice
from typing import TextIO

from passes.planning.buffer import Buffer, plain_buffer
from passes.planning.clocks import Moment, concurrent_lives
from passes.planning.memories import MemoriesPlan, MemoriesProblem, Traffic
from passes.planning.plan import Plan
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

REQUIRED_COLUMNS = ("id", "lower", "upper", "size")
COLUMNS = (*REQUIRED_COLUMNS, "alignment")
OFFSET, APART = "offset", "apart"
ROWS_AT_ONCE = 20_000
MEMORIES_COLUMNS = ("uses", "touches", "allowed", "stored_in", "memory", "stays")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_LARGEST = (1 << 62) - 1
_IN_BYTES = ("size", "alignment", OFFSET)


class CsvError(ValueError):
    """An error in a file, in one line that names the file and the row."""


def read_problem(
    stream: TextIO, name: str, memory: MemoryScope, *, keep_offsets: bool = False
) -> Problem:
    """Read a problem from a stream that was opened with ``newline=""``; `name` is for messages.

    With `keep_offsets`, buffers that have an offset stay there.
    Raises CsvError if a column is missing, unknown or given twice, a row has too few or too many
    fields, a number is malformed, negative or too large, a range is empty, an id is used twice, or
    there are no buffers.
    """
    try:
        text = stream.read()
        with _uncollected():
            buffers = None if keep_offsets else _plain_buffers(text)
            if buffers is not None:
                return Problem(buffers, memory, name=name)
        rows = [*_rows_of(io.StringIO(text, newline=""), name)]
        separations = dict.fromkeys((*_on_one_clock(rows), *_apart(rows)))
        buffers = tuple(_buffer_of(row, where, keep_offsets) for row, where in rows)
        return Problem(buffers, memory, separations=tuple(separations), name=name)
    except (csv.Error, ValueError) as error:
        raise _as_csv_error(error, name) from error


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make many objects that all stay, without the collector looking at each again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _plain_buffers(text: str) -> tuple[Buffer, ...] | None:
    """Return the buffers of a table, read many rows at a time; None if a row is not plain.

    Such a table is read row by row then, which finds what is wrong with it.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    buffers: list[Buffer] = []
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        known = {*COLUMNS, OFFSET, *MEMORIES_COLUMNS}
        if len(set(header)) < len(header) or not {*REQUIRED_COLUMNS} <= {*header} <= known:
            return None
        while rows := list(islice(reader, ROWS_AT_ONCE)):
            if any(len(row) != len(header) for row in rows):
                return None
            fields = dict(zip(header, zip(*rows, strict=True), strict=True))
            fields.setdefault("alignment", ("1",) * len(rows))
            for column in COLUMNS[1:]:
                digits, texts = "".join(fields[column]), fields[column]
                is_plain = digits.isascii() and digits.isdecimal() and all(texts)
                if not is_plain or max(map(len, texts)) >= 19:
                    return None
            begins, ends, sizes, alignments = ([*map(int, fields[c])] for c in COLUMNS[1:])
            names = fields["id"]
            if not all(names) or any("\0" in name for name in names) or 0 in alignments:
                return None
            if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
                return None
            columns = zip(names, sizes, begins, ends, alignments, strict=True)
            buffers += [plain_buffer(*each) for each in columns]
    except csv.Error:
        return None
    is_right = buffers and len({buffer.name for buffer in buffers}) == len(buffers)
    return tuple(buffers) if is_right else None


def _on_one_clock(rows: Sequence[tuple[dict[str, str], str]]) -> tuple[tuple[str, str], ...]:
    """Put lives on several clocks on one, and return the pairs that are to be kept apart for it."""
    if not any(":" in row["lower"] or ":" in row["upper"] for row, _ in rows):
        return ()

    def moment_of(text: str, column: str, where: str) -> Moment:
        return tuple(_number_of(position, column, where) for position in text.split(":"))

    lives, sizes = {}, {}
    for row, where in rows:
        begin, end = (moment_of(row[column], column, where) for column in ("lower", "upper"))
        lives[row["id"]] = begin, end
        sizes[row["id"]] = _number_of(row["size"], "size", where)
    live, separations = concurrent_lives(lives, sizes)
    for row, _ in rows:
        row["lower"], row["upper"] = map(str, live[row["id"]])
    return tuple((min(pair), max(pair)) for pair in separations)


def _apart(rows: Sequence[tuple[dict[str, str], str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of the column of buffers that must share no byte."""
    known = {row["id"] for row, _ in rows}
    for row, where in rows:
        for other in row.get(APART, "").split():
            if other not in known or other == row["id"]:
                raise CsvError(f"{where}: {APART} must list ids of other rows, got {other!r}")
            yield min(row["id"], other), max(row["id"], other)


def _as_csv_error(error: Exception, name: str) -> CsvError:
    """Return what to raise for a fault found in a file, which the message names."""
    if isinstance(error, CsvError):
        return error
    if isinstance(error, (csv.Error, UnicodeDecodeError)):
        return CsvError(f"{name}: not a CSV file: {error}")
    return CsvError(str(error) if name in str(error) else f"{name}: {error}")


def write_plan(stream: TextIO, problem: Problem, plan: Plan, given: str | None = None) -> None:
    """Write the buffers of a problem that was read by `read_problem`, with their offsets.

    `given` is the text that it was read from; needed only where that says more than live ranges do.
    """
    if problem.separations:
        table = [row for row, _ in _rows_of(io.StringIO(given, newline=""), problem.name)]
        header = ["id", *(column for column in table[0] if column not in ("id", OFFSET))]
        rows = ((*(r[c] for c in header), plan.offsets[r["id"]][0]) for r in table)
        _write(stream, (*header, OFFSET), rows)
        return
    columns = _columns(problem.buffers)
    rows = ((*_cells(b, columns), plan.offsets[b.name][0]) for b in problem.buffers)
    _write(stream, (*columns, OFFSET), rows)


def _columns(buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """Return the columns of a buffer: that of alignments only where there are any."""
    return COLUMNS if any(buffer.alignment != 1 for buffer in buffers) else REQUIRED_COLUMNS


def _cells(buffer: Buffer, columns: Sequence[str]) -> tuple[object, ...]:
    return (buffer.name, *buffer.live[0], buffer.size, buffer.alignment)[: len(columns)]


def _write(stream: TextIO, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    plain, quoted = (
        csv.writer(stream, lineterminator="\n", quoting=quoting)
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)
    )
    plain.writerow(header)
    for row in rows:
        # Before Python 3.13, quotes that are minimal leave a carriage return bare.
        (quoted if "\r" in str(row[0]) else plain).writerow(row)


def _rows_of(stream: TextIO, name: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield each row by column, and what messages call it."""
    reader = csv.reader(stream)
    header = [column.strip().lower() for column in next(reader, [])]
    _check_header(header, name)
    seen: set[str] = set()
    for fields in reader:
        if not fields:
            continue
        where = f"{name}:{reader.line_num}"
        if len(fields) != len(header):
            raise CsvError(f"{where}: {len(fields)} fields, but the header has {len(header)}")
        row = dict(zip(header, fields, strict=True))
        if not row["id"] or "\0" in row["id"]:
            raise CsvError(
                f"{where}: id must be a text, not empty and without NUL, got {row['id']!r}"
            )
        if row["id"] in seen:
            raise CsvError(f"{where}: id {row['id']!r} is used twice")
        seen.add(row["id"])
        yield row, where
    if not seen:
        raise CsvError(f"{name}: no buffers")


def _check_header(header: list[str], name: str) -> None:
    if not any(header):
        raise CsvError(f"{name}: empty; the first line must name the columns {', '.join(COLUMNS)}")
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        for separator in (";", "\t"):
            if any(separator in column for column in header):
                raise CsvError(f"{name}: columns are separated by {separator!r}; use commas")
        raise CsvError(f"{name}: no column {', '.join(missing)}; got {', '.join(header)}")
    for column in header:
        if column not in (*COLUMNS, OFFSET, APART, *MEMORIES_COLUMNS):
            known = ", ".join((*COLUMNS, APART))
            raise CsvError(f"{name}: unknown column {column!r}; known are {known}")
        if header.count(column) > 1:
            raise CsvError(f"{name}: column {column!r} is given twice")


def _buffer_of(row: dict[str, str], where: str, keep_offsets: bool = False) -> Buffer:
    """Return the buffer that a row describes."""
    lower, upper, size, alignment = (
        _number_of(row.get(column, "1"), column, where)
        for column in ("lower", "upper", "size", "alignment")
    )
    kept = row.get(OFFSET, "").strip() if keep_offsets else ""
    pinned = (_number_of(kept, OFFSET, where),) if kept else None
    if upper <= lower:
        raise CsvError(f"{where}: upper must be above lower, got {lower} and {upper}")
    if alignment == 0:
        raise CsvError(f"{where}: alignment must be positive, got 0")
    return Buffer(row["id"], size, ((lower, upper),), alignment, pinned=pinned)


def _number_of(text: str, column: str, where: str) -> int:
    """Return the integer from 0 that a field holds."""
    if len(text) < 19 and text.isascii() and text.isdecimal():
        return int(text)
    text = text.strip()
    shown = text if len(text) <= 40 else text[:40] + "..."
    if column in _IN_BYTES and len(text) <= 40 and text[-1:] in ("B", "b"):
        try:
            text = str(parse_bytes(text))
        except ValueError as error:
            raise CsvError(f"{where}: {column}: {error}") from error
    if not _INTEGER.fullmatch(text):
        raise CsvError(f"{where}: {column} must be an integer, got {shown!r}")
    if len(text) > 20 or int(text) > _LARGEST:
        raise CsvError(f"{where}: {column} is too large, got {shown!r}")
    if int(text) < 0:
        raise CsvError(f"{where}: {column} must not be negative, got {shown}")
    return int(text)


def parse_bytes(text: str) -> int:
    """Read ``4096``, ``192KiB`` or ``1.5 MiB``; ValueError if it is no whole number of bytes."""
    units = {unit.lower(): 1 << 10 * power for power, unit in enumerate(UNITS)}
    found = _SIZE.fullmatch(text.strip())
    unit = units.get(found[2].lower() or "b") if found else None
    if found is None or unit is None:
        raise ValueError(f"expected bytes such as 4096, 192KiB or 1.5MiB, got {text!r}")
    nbytes = Fraction(found[1]) * unit
    if nbytes.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(nbytes)


def read_memories_problem(
    stream: TextIO, name: str, memories: Sequence[MemoryScope], words: Mapping[str, str]
) -> MemoriesProblem:
    """Read a problem from a stream that was opened with ``newline=""``.

    `words` has the scope of each memory by what the file calls it. Where the file says how often a
    buffer is used but not when, its first use is taken to be at the first position of its life and
    its last one at the last position, with all others right after the first. Raises CsvError as
    `read_problem` does, and if a memory is not known.
    """
    try:
        buffers, traffic = [], {}
        for row, where in _rows_of(stream, name):
            if ":" in row["lower"] or row.get(APART):
                raise CsvError(f"{where}: several clocks or {APART} cannot be in several memories")
            buffer = _buffer_of(row, where)
            buffers.append(buffer)
            traffic[buffer.name] = _traffic(row, buffer, where, words)
        return MemoriesProblem(tuple(buffers), tuple(memories), traffic, name)
    except (csv.Error, ValueError) as error:
        raise _as_csv_error(error, name) from error


def write_memories_plan(
    stream: TextIO, problem: MemoriesProblem, plan: MemoriesPlan, words: Mapping[str, str]
) -> None:
    """Write the buffers of a problem that was read with their memories and offsets."""
    called = {scope: word for word, scope in words.items()}
    columns = _columns(problem.buffers)
    rows = []
    for buffer in problem.buffers:
        traffic = problem.traffic_of(buffer)
        where = called[plan.memory[buffer.name]], plan.offsets[buffer.name][0]
        row = (*_cells(buffer, columns), traffic.uses, *where)
        if plan.stays:
            stays = (
                f"{called[stay.memory]}:{stay.offsets[0]}:{stay.live[0]}-{stay.live[1]}"
                for stay in plan.stays.get(buffer.name, ())
            )
            touches = " ".join(map(str, traffic.touches))
            row = (*_cells(buffer, columns), traffic.uses, touches, *where, " ".join(stays))
        rows.append(row)
    moving = ("uses", "touches", "memory", OFFSET, "stays")
    _write(stream, (*columns, *(moving if plan.stays else ("uses", "memory", OFFSET))), rows)


def _traffic(
    row: Mapping[str, str], buffer: Buffer, where: str, words: Mapping[str, str]
) -> Traffic:
    touches = tuple(_number_of(t, "touches", where) for t in row.get("touches", "").split())
    uses = _number_of(row.get("uses") or str(len(touches) or 1), "uses", where)
    (begin, end), named = buffer.live[0], row.get("allowed", "").split()
    stored = row.get("stored_in", "").strip()
    for word in (*named, *([stored] if stored else [])):
        if word not in words:
            raise ValueError(f"{where}: no memory {word!r}; there are: {', '.join(words)}")
    if not touches and not stored and 2 < uses <= end - begin:
        touches = (*range(begin, begin + uses - 1), end - 1)
    memories = tuple(words[word] for word in named) or None
    return Traffic(uses, touches, {}, memories, words[stored] if stored else None)
