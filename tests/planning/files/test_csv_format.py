# SPDX-License-Identifier: Apache-2.0
"""CSV files: what is read and written, and one clear line for each bad file."""

import csv
import io
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes.planning import (
    Buffer,
    MemoriesProblem,
    Problem,
    Traffic,
    files,
    lower_bound,
    solve,
    verify,
)
from passes.planning.files import (
    CsvError,
    read_memories_problem,
    read_problem,
    write_memories_plan,
    write_plan,
)
from passes.planning.plan import OffsetColumn
from target_hw.memory import MemoryScope

GLOBAL = MemoryScope("global")
HEADER = "id,lower,upper,size\n"
TOP = (1 << 63) - (1 << 30)  # With a size on top, a sum in 64 bits would wrap around


def read(text, memory=GLOBAL):
    return read_problem(io.StringIO(text, newline=""), "F.csv", memory)


def test_columns_may_come_in_any_order_between_blank_lines_and_windows_line_ends():
    problem = read("size, upper,lower,alignment,id\n 8,4,1,32,a b\n")
    assert problem.buffers == (Buffer("a b", 8, ((1, 4),), 32),)
    assert len(read("id,lower,upper,size\r\n\r\na,0,1,4\r\n").buffers) == 1


# What `str.isprintable` calls so.
PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" \r\n")

buffers = st.builds(
    lambda name, size, begin, life, alignment: Buffer(
        name, size, ((begin, begin + life),), alignment
    ),
    st.text(PRINTABLE, min_size=1),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
    st.sampled_from([1, 2, 32]),
)


@given(st.lists(buffers, min_size=1, max_size=5, unique_by=lambda b: b.name))
def test_what_is_written_reads_as_it_was(rows):
    problem = Problem(tuple(rows), name="F.csv")
    plan = solve(problem, "bump")
    out = io.StringIO(newline="")
    write_plan(out, problem, plan)
    assert read(out.getvalue()) == problem  # the offsets are left aside
    header, *lines = csv.reader(io.StringIO(out.getvalue(), newline=""))
    assert header[-1] == "offset"
    assert [int(line[-1]) for line in lines] == [plan.offsets[b.name][0] for b in rows]


def test_an_id_with_a_carriage_return_is_quoted():
    problem = Problem((Buffer("a\rb", 8, ((0, 2),)), Buffer("c", 8, ((0, 2),))))
    out = io.StringIO(newline="")
    write_plan(out, problem, solve(problem, "bump"))
    assert read(out.getvalue()).buffers == problem.buffers
    memories = (MemoryScope("global.m0", 8), GLOBAL)
    several = MemoriesProblem(problem.buffers, memories, {"c": Traffic(touches=(0, 1))})
    out, words = io.StringIO(newline=""), {"fast": "global.m0", "slow": "global"}
    write_memories_plan(out, several, solve(several), words)
    again = read_memories_problem(io.StringIO(out.getvalue(), newline=""), "F", memories, words)
    assert again.buffers == problem.buffers


def test_sizes_may_have_a_unit():
    problem = read("id,lower,upper,size,alignment\na,0,1,1.5KiB,32B\nb,0,1, 4 MiB ,64\n")
    assert [buffer.size for buffer in problem.buffers] == [1536, 4 << 20]
    assert [buffer.alignment for buffer in problem.buffers] == [32, 64]


def test_offsets_are_kept_where_that_is_asked_for():
    text = "id,lower,upper,size,offset\na,0,2,8,64\nb,0,2,8,\nc,2,3,8,1KiB\n"
    assert not any(buffer.pinned for buffer in read(text).buffers)
    kept = read_problem(io.StringIO(text, newline=""), "F.csv", GLOBAL, keep_offsets=True)
    assert [buffer.pinned for buffer in kept.buffers] == [(64,), None, (1024,)]
    plan = solve(kept)
    assert (plan.offsets["a"], plan.offsets["b"], plan.offsets["c"]) == ((64,), (0,), (1024,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "a,0,1,4KB\n", "F.csv:2: size: expected bytes such as 4096, 192KiB or 1.5MiB"),
        (HEADER + "a,0,1KiB,4\n", "F.csv:2: upper must be an integer, got '1KiB'"),
        ("id;lower;upper;size\na;0;1;4\n", "F.csv: columns are separated by ';'; use commas"),
        ("", "F.csv: empty; the first line must name the columns"),
        ("\n\n", "F.csv: empty"),
        (HEADER, "F.csv: no buffers"),
        ("id,lower,upper\na,0,1\n", "F.csv: no column size; got id, lower, upper"),
        ("a,0,1,4\n", "F.csv: no column id, lower, upper, size"),
        ("id,lower,upper,size,gaps\na,0,1,4,\n", "F.csv: unknown column 'gaps'"),
        ("id,lower,upper,size,size\na,0,1,4,4\n", "F.csv: column 'size' is given twice"),
        (HEADER + "a,0,1\n", "F.csv:2: 3 fields, but the header has 4"),
        (HEADER + "a,0,1,4,5\n", "F.csv:2: 5 fields, but the header has 4"),
        (HEADER + "a,0,1,x\n", "F.csv:2: size must be an integer, got 'x'"),
        (HEADER + "a,0,1,\n", "F.csv:2: size must be an integer, got ''"),
        (HEADER + "a,0,1.5,4\n", "F.csv:2: upper must be an integer, got '1.5'"),
        (HEADER + "a,0,1,1_000\n", "F.csv:2: size must be an integer, got '1_000'"),
        (HEADER + "a,0,1,-4\n", "F.csv:2: size must not be negative, got -4"),
        (HEADER + "a,-1,1,4\n", "F.csv:2: lower must not be negative, got -1"),
        (HEADER + "a,3,3,4\n", "F.csv:2: upper must be above lower, got 3 and 3"),
        (HEADER + "a,4,3,4\n", "F.csv:2: upper must be above lower, got 4 and 3"),
        (HEADER + "a,0,1,4\nb,0,1,4\na,1,2,4\n", "F.csv:4: id 'a' is used twice"),
        (HEADER + f"a,0,1,{1 << 63}\n", "F.csv:2: size is too large"),
        (HEADER + "a,0,1," + "9" * 5000 + "\n", "F.csv:2: size is too large, got '999"),
        (HEADER + f"a,0,1,{1 << 61}\nb,0,1,{1 << 61}\n", "F.csv: its buffers add up to"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", "F.csv:2: alignment must be positive"),
        ("id,lower,upper,size,alignment\na,0,1,4,-2\n", "alignment must not be negative"),
        (HEADER + '"a,0,1,4\n' * 3, "F.csv"),
        (HEADER + ",0,1,4\n", "F.csv:2: id must be a text, not empty and without NUL, got ''"),
        (HEADER + "a\0b,0,1,4\n", r"F.csv"),
        (HEADER + "a,0,1,٣\n", "F.csv:2: size must be an integer, got '٣'"),
        (HEADER + "a,0,1," + "٣" * 30 + "\n", "F.csv:2: size must be an integer"),
        ("id,lower,upper,size,offset,offset\n", "F.csv: column 'offset' is given twice"),
    ],
)
@pytest.mark.parametrize("few", [0, files.FEW_ROWS])
def test_bad_files_are_refused_in_one_line(text, message, few, monkeypatch):
    monkeypatch.setattr(files, "FEW_ROWS", few)
    with pytest.raises(CsvError) as error:
        read(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "id,lower,upper,size\na,0,2,8\nb,1,3,4\n",
        "size, ID ,alignment,lower,upper,offset\n8,a,4,0,2,\n4,b,16,1,3,7\n",
        'id,lower,upper,size,uses\n"a,b",0,2,8,1\n" c",1,3,0,9\n',
        "id,lower,upper,size\r\na,0,2,8\r\n\r\nb,1,3,4\r\n",
        "id,lower,upper,size\na, 0,2,+8\n",
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 20_000])
def test_a_table_is_read_alike_row_by_row_and_many_rows_at_a_time(text, rows, monkeypatch):
    memory = MemoryScope("global")
    row_by_row = files.read_problem(io.StringIO(text, newline=""), "t.csv", memory)
    monkeypatch.setattr(files, "FEW_ROWS", 0)
    monkeypatch.setattr(files, "ROWS_AT_ONCE", rows)
    at_once = files.read_problem(io.StringIO(text, newline=""), "t.csv", memory)
    assert at_once == row_by_row
    (first, *_) = at_once.buffers
    assert replace(first, name="x") == Buffer("x", 8, ((0, 2),), first.alignment)


@pytest.mark.parametrize(("capacity", "alignment"), [(None, 1), (9000, 1), (None, 64)])
def test_a_table_is_planned_and_checked_in_columns(capacity, alignment):
    rng = random.Random(7)
    lines = ["id,size,alignment,lower,upper"]
    for at in range(400):
        begin = rng.randrange(900)
        end = begin + rng.randrange(1, 60)
        lines.append(f"b {at},{rng.randrange(200)},{rng.choice((1, 4, 32))},{begin},{end}")
    text = "\n".join(lines)
    memory = MemoryScope("global", capacity, alignment)
    table = files.read_problem(io.StringIO(text, newline=""), "t.csv", memory)
    plan = solve(table, "first_fit")
    written = io.StringIO()
    write_plan(written, table, plan)
    assert verify(table, plan) == ()
    assert plan.peak >= lower_bound(table)
    assert "buffers" not in vars(table)  # Nobody has made them.
    same = Problem(table.buffers, memory, name=table.name)
    assert same == table
    assert lower_bound(same) == lower_bound(table)
    assert solve(same, "first_fit") == plan
    column = plan.offsets.column
    for kind, moved in (("overlap", column // 2), ("offset", column - 999), ("peak", column + TOP)):
        wrong = replace(plan, offsets=OffsetColumn(table.columns.names, moved))
        found = verify(table, wrong, limit=None)
        assert kind in {violation.kind for violation in found}
        by_name = replace(plan, offsets=dict(wrong.offsets))
        assert found == verify(same, wrong, limit=None) == verify(same, by_name, limit=None)
    again = io.StringIO()
    write_plan(again, same, solve(same, "first_fit"))
    assert again.getvalue() == written.getvalue()
