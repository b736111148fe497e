# SPDX-License-Identifier: Apache-2.0
"""Bytes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.text import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("7B", 7),
        ("192KiB", 192 << 10),
        ("192 kib", 192 << 10),
        (" 1.5MiB ", 3 << 19),
        ("0.5KiB", 512),
        ("2GiB", 2 << 30),
        ("1.0625EiB", 17 << 56),
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
