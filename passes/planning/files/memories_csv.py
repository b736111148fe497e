# SPDX-License-Identifier: Apache-2.0
"""Problems and plans of several memories in CSV.

Beside the columns of one memory (`csv_format.py`) a table may have

- ``uses``: how often a run writes or reads the whole buffer; 1 if there is no such column;
- ``touches``: the positions of these uses, ascending, with spaces between;
- ``allowed``: the memories that a buffer may lie in, with spaces between; empty for all;
- ``stored_in``: the memory that holds the value before the run, such as that of a weight.

A plan adds ``memory`` and ``offset``, and ``stays`` where buffers move: for each stay in a faster
memory ``MEMORY:OFFSET:BEGIN-END``, with spaces between. These are not read again.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import TextIO

from passes.planning.buffer import Buffer
from passes.planning.files.csv_format import (
    OFFSET,
    REQUIRED_COLUMNS,
    as_csv_error,
    buffer_of,
    number_of,
    rows_of,
)
from passes.planning.memories import MemoriesPlan, MemoriesProblem, Traffic
from target_hw.memory import MemoryScope


def read_memories_problem(
    stream: TextIO, name: str, memories: Sequence[MemoryScope], words: Mapping[str, str]
) -> MemoriesProblem:
    """Read a problem from a stream that was opened with ``newline=""``.

    `words` has the scope of each memory by what the file calls it. Where the file says how often a
    buffer is used but not when, its first use is taken to be at the first position of its life and
    its last one at the last position, with all others right behind the first. Raises CsvError as
    `csv_format.read_problem` does, and if a memory is not known.
    """
    try:
        buffers, traffic = [], {}
        for row, where in rows_of(stream, name):
            buffer = buffer_of(row, where)
            buffers.append(buffer)
            traffic[buffer.name] = _traffic(row, buffer, where, words)
        return MemoriesProblem(tuple(buffers), tuple(memories), traffic, name)
    except (csv.Error, ValueError) as error:
        raise as_csv_error(error, name) from error


def write_memories_plan(
    stream: TextIO, problem: MemoriesProblem, plan: MemoriesPlan, words: Mapping[str, str]
) -> None:
    """Write the buffers of a problem that was read with their memories and offsets."""
    called = {scope: word for word, scope in words.items()}
    touches = bool(plan.stays)
    alignment = any(buffer.alignment != 1 for buffer in problem.buffers)
    columns = [*REQUIRED_COLUMNS, *(["alignment"] * alignment), "uses", *(["touches"] * touches)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*columns, "memory", OFFSET, *(["stays"] if plan.stays else [])))
    for buffer in problem.buffers:
        traffic = problem.traffic_of(buffer)
        row: list[object] = [buffer.name, *buffer.live[0], buffer.size]
        row += [buffer.alignment] * alignment
        row += [traffic.uses, *([" ".join(map(str, traffic.touches))] * touches)]
        row += [called[plan.memory[buffer.name]], plan.offsets[buffer.name][0]]
        if plan.stays:
            stays = (
                f"{called[stay.memory]}:{stay.offsets[0]}:{stay.live[0]}-{stay.live[1]}"
                for stay in plan.stays.get(buffer.name, ())
            )
            row.append(" ".join(stays))
        writer.writerow(row)


def _traffic(
    row: Mapping[str, str], buffer: Buffer, where: str, words: Mapping[str, str]
) -> Traffic:
    touches = tuple(number_of(t, "touches", where) for t in row.get("touches", "").split())
    uses = number_of(row.get("uses") or str(len(touches) or 1), "uses", where)
    (begin, end), named = buffer.live[0], row.get("allowed", "").split()
    stored = row.get("stored_in", "").strip()
    for word in (*named, *([stored] if stored else [])):
        if word not in words:
            raise ValueError(f"{where}: no memory {word!r}; there are: {', '.join(words)}")
    if not touches and not stored and 2 < uses <= end - begin:
        touches = (*range(begin, begin + uses - 1), end - 1)
    memories = tuple(words[word] for word in named) or None
    return Traffic(uses, touches, {}, memories, words[stored] if stored else None)
