# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch: its memory planning pass with our planners, and the memory of a program it wrote."""

from tvm_ext.hosts.executorch.planning_pass import SpecPlanner, memory_planning_pass
from tvm_ext.hosts.executorch.read_program import SUFFIX, read_program

__all__ = ["SUFFIX", "SpecPlanner", "memory_planning_pass", "read_program"]
