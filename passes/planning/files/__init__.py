# SPDX-License-Identifier: Apache-2.0
"""Problems and plans in files."""

from passes.planning.files.csv_format import (
    read_memories_problem,
    read_problem,
    write_memories_plan,
    write_plan,
)

__all__ = ["read_memories_problem", "read_problem", "write_memories_plan", "write_plan"]
