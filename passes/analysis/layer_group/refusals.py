"""What is raised where layers are left alone, and how the reason is said."""

from __future__ import annotations

UNFORESEEN = (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError)
"""What is raised where a kernel is none that can be cut, or none that anybody thought of.

`NotSliceableError` is a ValueError; TVM raises a TypeError or a ValueError for an expression that
it refuses, and else RuntimeErrors, schedules too. None of them may end a build.
"""


def first_line(error: Exception) -> str:
    """Return what an error says first; its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
