# SPDX-License-Identifier: Apache-2.0
"""What an error says: those of TVM go on for many lines."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
