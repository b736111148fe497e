# SPDX-License-Identifier: Apache-2.0
"""Memory maps: the placement of each buffer, beside the lines of the program."""

from tvm_ext.map.memory_map import BufferNote, Listing, MemoryMap, ScopeMap, write_map
from tvm_ext.map.source import map_of_module, map_of_problem, memory_map_of
from tvm_ext.planned.placements import MapOptions, Peak, PlannedProblem, PlannedRun
