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
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TextIO

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import Buffer
from passes.planning.clocks import Moment, concurrent_lives
from passes.planning.columns import Columns, Ints
from passes.planning.memories import MemoriesPlan, MemoriesProblem, Traffic
from passes.planning.plan import OffsetColumn, Plan
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

REQUIRED_COLUMNS = ("id", "lower", "upper", "size")
COLUMNS = (*REQUIRED_COLUMNS, "alignment")
OFFSET, APART = "offset", "apart"
ROWS_AT_ONCE = 20_000
FEW_ROWS = 64  # Rows up to which a table is read row by row, which is as fast
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
        are_few = text.count("\n") < FEW_ROWS
        columns = None if keep_offsets or are_few else _plain_columns(text)
        if columns is not None:
            return Problem.of_table(columns, memory, name)
        rows = [*_rows_of(io.StringIO(text, newline=""), name)]
        separations = dict.fromkeys((*_on_one_clock(rows), *_apart(rows)))
        buffers = tuple(_buffer_of(row, where, keep_offsets) for row, where in rows)
        return Problem(buffers, memory, separations=tuple(separations), name=name)
    except (csv.Error, ValueError) as error:
        raise _as_csv_error(error, name) from error


def _plain_columns(text: str) -> Columns | None:
    """Return the buffers of a table that has no quotes, all at once; None if a row is not plain.

    Such a table is read row by row then, which finds what is wrong with it.
    """
    is_lone = '"' in text or "\0" in text or text.count("\r") != text.count("\r\n")
    if is_lone or any("\ud800" <= letter <= "\udfff" for letter in {*text}):
        return None
    encoded = text.encode().replace(b"\r\n", b"\n")
    encoded += b"" if encoded.endswith(b"\n") else b"\n"
    begin = encoded.index(b"\n") + 1
    header = [str(column, "utf-8").strip().lower() for column in encoded[: begin - 1].split(b",")]
    known = {*COLUMNS, OFFSET, *MEMORIES_COLUMNS}
    if len(set(header)) < len(header) or not {*REQUIRED_COLUMNS} <= {*header} <= known:
        return None
    data = np.frombuffer(encoded, np.uint8, offset=begin)
    is_line = data == ord("\n")
    stops = np.flatnonzero(is_line | (data == ord(",")))
    rows = np.count_nonzero(is_line)
    if len(stops) != len(header) * rows or not is_line[stops[len(header) - 1 :: len(header)]].all():
        return None
    del is_line
    starts = np.append(0, stops[:-1] + 1)

    def field(name: str) -> tuple[Ints, Ints]:
        at = header.index(name)
        return starts[at :: len(header)], stops[at :: len(header)]

    if not rows:
        return None
    numbers = [_numbers(data, *field(column)) for column in COLUMNS[1:] if column in header]
    found = [column for column in numbers if column is not None]
    if len(found) < len(numbers):
        return None
    names: list[str] = []
    for low in range(0, rows, ROWS_AT_ONCE):
        bounds = ((begin + f[low : low + ROWS_AT_ONCE]).tolist() for f in field("id"))
        names += [str(encoded[a:b], "utf-8") for a, b in zip(*bounds, strict=True)]
    if not all(names) or len({*names}) < len(names):
        return None
    each = np.arange(len(names))
    begins, ends, sizes, alignments = (*found, np.ones_like(each))[:4]
    if (ends <= begins).any() or not alignments.all():
        return None
    return Columns(names, sizes, alignments, np.ones_like(each), begins, ends, each)


def _numbers(data: npt.NDArray[np.uint8], starts: Ints, stops: Ints) -> Ints | None:
    """Return the integers that fields have; None if one has more than digits, or too many."""
    lengths = stops - starts
    if not 0 < lengths.min() <= lengths.max() < 19:
        return None
    values = np.zeros_like(starts)
    for at in range(lengths.max()):
        is_there = lengths > at
        digits = data[np.where(is_there, starts + at, starts)] - ord("0")
        if digits.max() > 9:
            return None
        values = np.where(is_there, 10 * values + digits, values)
    return values


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
        header = ("id", *(column for column in table[0] if column not in ("id", OFFSET)))
        rows = ((*(r[c] for c in header), plan.offsets[r["id"]][0]) for r in table)
        _write(stream, (*header, OFFSET), rows)
        return
    header, cells = _cells(problem.columns)
    if isinstance(plan.offsets, OffsetColumn):
        offsets = plan.offsets.column.tolist()
    else:
        offsets = [plan.offsets[name][0] for name in problem.columns.names]
    _write(stream, (*header, OFFSET), ((*c, at) for c, at in zip(cells, offsets, strict=True)))


def _cells(columns: Columns) -> tuple[tuple[str, ...], Iterator[tuple[object, ...]]]:
    """Return a header and a row a buffer: with alignments only where there are any."""
    numbers = [columns.begins, columns.ends, columns.sizes]
    numbers += [columns.alignments] if (columns.alignments > 1).any() else []
    header = COLUMNS[: 1 + len(numbers)]
    return header, zip(columns.names, *(column.tolist() for column in numbers), strict=True)


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
    columns, rows_of_cells = _cells(Columns.of(problem.buffers))
    rows = []
    for buffer, cells in zip(problem.buffers, rows_of_cells, strict=True):
        traffic = problem.traffic_of(buffer)
        where = called[plan.memory[buffer.name]], plan.offsets[buffer.name][0]
        row = (*cells, traffic.uses, *where)
        if plan.stays:
            stays = (
                f"{called[stay.memory]}:{stay.offsets[0]}:{stay.live[0]}-{stay.live[1]}"
                for stay in plan.stays.get(buffer.name, ())
            )
            touches = " ".join(map(str, traffic.touches))
            row = (*cells, traffic.uses, touches, *where, " ".join(stays))
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
