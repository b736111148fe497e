# SPDX-License-Identifier: Apache-2.0
"""Problems of captured NPU kernels, as JSON: several memories, separations and penalties a kernel.

One kernel is an object with ``name``, ``pools`` (scope to ``capacity`` and ``reserved`` ranges,
``{"begin": b, "end": e}``), ``buffers`` (``id``, ``scope``, ``size``, ``alignment`` and ``live``,
half-open ranges), ``separations`` (pairs of ids) and ``penalties`` (id, id, cost); all in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from passes.planning import Buffer, Penalty, Problem
from target_hw.memory import MemoryScope


def kernel_problems(kernel: Mapping[str, Any]) -> list[Problem]:
    """Return one problem for each memory of a kernel; buffers are named by their ids.

    Pairs of buffers in different memories say nothing and are left out.
    """
    return [_problem(kernel, scope, pool) for scope, pool in kernel["pools"].items()]


def _problem(kernel: Mapping[str, Any], scope: str, pool: Mapping[str, Any]) -> Problem:
    rows = [row for row in kernel["buffers"] if row["scope"] == scope]
    here = {row["id"] for row in rows}
    return Problem(
        tuple(
            Buffer(
                str(row["id"]),
                row["size"],
                tuple((begin, end) for begin, end in row["live"]),
                row["alignment"],
            )
            for row in rows
        ),
        MemoryScope(
            scope,
            pool["capacity"],
            reserved=tuple((entry["begin"], entry["end"]) for entry in pool["reserved"]),
        ),
        separations=tuple((str(a), str(b)) for a, b in kernel["separations"] if {a, b} <= here),
        penalties=tuple(
            Penalty(str(a), str(b), cost) for a, b, cost in kernel["penalties"] if {a, b} <= here
        ),
        name=f"{kernel['name']} {scope}",
    )
