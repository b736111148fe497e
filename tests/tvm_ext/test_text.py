# SPDX-License-Identifier: Apache-2.0
"""Rows of cells as text and HTML; numbers of bytes, written and read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes.ir import first_line
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
