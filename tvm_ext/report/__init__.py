# SPDX-License-Identifier: Apache-2.0
"""Reports of a program's memory: read once, planned by several planners, shown in several ways."""

from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import Axis, BufferNote, LeftAlone, MemoryView, PlannedProblem
from tvm_ext.report.report import Report, check_suffix, report_of
from tvm_ext.report.source import compare, memory_map
