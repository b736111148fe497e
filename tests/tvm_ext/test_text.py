# SPDX-License-Identifier: Apache-2.0
"""Rows of cells as text and HTML; numbers of bytes, written and read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes.ir import first_line
from passes.planning.html_table import ROW_LIMIT
from tvm_ext.text import Table, format_bytes, format_seconds, parse_bytes

ROWS = (("", "bytes", "nothing", "a|b"), ("first", "1", "", "x y"), ("second", "22", "", "z"))
TABLE = Table("title", ROWS, notes=("a note",))
SHOWN = [["first", "1", "x y"], ["second", "22", "z"]]


def test_text_has_the_cells_in_columns():
    title, _, header, *rows, _, note = TABLE.text()
    assert (title, note) == ("title", "a note")
    end = header.index("bytes") + len("bytes")
    cells = [(row[: end - 5], row[end - 5 : end], row[end:]) for row in rows]
    assert [[cell.strip() for cell in row] for row in cells] == SHOWN
    assert "nothing" not in header


def test_html_has_the_cells_and_the_notes_and_a_cell_of_several_lines_is_as_many_of_text():
    text = TABLE.html()
    for cell in ("title", "a note", *SHOWN[0], *SHOWN[1]):
        assert f">{cell}</" in text
    table = Table("", (("name", "bytes"), ("one\ntwo", "1")))
    assert [line.split() for line in table.text()[3:]] == [["one", "1"], ["two"]]
    long = Table("", [("name",), *[("row",)] * (ROW_LIMIT + 2)], ["note"] * (ROW_LIMIT + 3)).html()
    assert (long.count(">row<"), long.count(">note<")) == (ROW_LIMIT, ROW_LIMIT)
    assert "... and 2 more" in long
    assert "... and 3 more" in long


def test_text_is_folded_within_a_width_and_loses_nothing():
    names = ("fused_conv2d_add_relu:features.1.expand_activation relu", "x" * 70, "pool:pool")
    rows = [("group", "layer", "bytes that move", "of"), ("0", "\n".join(names), "1,000,000", "y")]
    rows.append(("1", "dense:dense", "12", "z"))
    note = "a long note on what the numbers do not count, as a reader might expect them to"
    table = Table("a title of several words, which has no room in one line", rows, (note,), (0, 1))
    assert table.text() == table.text(200)
    for width in (30, 40, 55, 80):
        lines = "\n".join(table.text(width)).split("\n")
        assert max(map(len, lines)) <= max(width, 5 + 2 + 16 + 2 + 9 + 2 + 2)
        said = "".join("".join(lines).split())
        for text in ("group", "1,000,000", "12", "dense:dense", *note.split()):
            assert text in said
        # The column of the layers, of which the other columns have nothing on folded lines.
        body = lines[next(at for at, line in enumerate(lines) if line.startswith("0 ")) :]
        body = body[: next(at for at, line in enumerate(body) if line.startswith("1 "))]
        left = "".join(body).replace("1,000,000", "").removeprefix("0")
        whole = "".join("".join(names).split())
        assert sorted("".join(left.split())) == sorted(whole + "y")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [((1023, 0), "1023/0 B"), ((1023 << 10, 0), "1023/0 KiB"), ((1024, 512), "1/0.5 KiB")],
)
def test_sizes_have_one_unit(nbytes, text):
    assert format_bytes(*nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [((0.5, 0.25), "500/250 ms"), ((2.0, 0.5), "2/0.5 s"), ((5e-6,), "5 us")]
)
def test_times_have_one_unit(seconds, text):
    assert format_seconds(*seconds) == text


# ------------------------------------------------------------------------------- bytes as typed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("4096", 4096), ("7B", 7), ("192KiB", 192 << 10), ("192 kib", 192 << 10)),
        *((" 1.5MiB ", 3 << 19), ("0.5KiB", 512), ("2GiB", 2 << 30), ("1.0625EiB", 17 << 56)),
    ],
)
def test_reads_bytes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "MiB", "1MB", "1.MiB", ".5KiB", "-1", "1e3", "1_000", "٣", "0x10"]
)
def test_refuses_what_is_no_size(text):
    with pytest.raises(ValueError, match="expected bytes such as"):
        parse_bytes(text)


def test_refuses_parts_of_a_byte():
    with pytest.raises(ValueError, match=r"'1\.3KiB' is not a whole number of bytes"):
        parse_bytes("1.3KiB")


@given(st.integers(0, 1 << 62))
def test_reads_what_is_written_up_to_rounding(value):
    written = format_bytes(value).replace(" ", "")
    try:
        read = parse_bytes(written)
    except ValueError as error:
        assert "whole number" in str(error)  # noqa: PT017
    else:
        assert abs(read - value) <= value / 100


def test_an_error_without_a_text_says_where_it_was_raised():
    with pytest.raises(AssertionError) as caught:
        raise AssertionError
    where = r"AssertionError in tests/tvm_ext/test_text\.py:\d+, 'raise AssertionError'"
    assert re.fullmatch(where, first_line(caught.value))
    assert first_line(ValueError("\n a reason \n more")) == "a reason"
    assert first_line(KeyError()) == "KeyError"
