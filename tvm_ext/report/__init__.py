# SPDX-License-Identifier: Apache-2.0
"""Reports of a program's memory: read once, planned by several planners, shown in several ways."""

from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import (
    Axis,
    BufferNote,
    Fault,
    LeftAlone,
    MemoryView,
    Peak,
    PlannedProblem,
    PlannedRun,
)
from tvm_ext.report.report import Report, check_suffix, report_of
from tvm_ext.report.source import VIEWS, compare, memory_map
