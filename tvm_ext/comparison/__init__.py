# SPDX-License-Identifier: Apache-2.0
"""The stock passes and ours side by side: as data, as tables, and as a command."""

from typing import NamedTuple


class Report(NamedTuple):
    """What ``tvm-ext compare`` found."""

    data: object  # For ``--json``
    lines: list[str]  # What is printed
    status: int = 0  # The exit status
