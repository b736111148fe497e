# SPDX-License-Identifier: Apache-2.0
"""Cost of a plan in time, on a machine whose pipelines run side by side."""

from passes.simulation.program import Alternative, Loop, Statement, Step, statements_of
from passes.simulation.simulate import Cause, PipeTime, Run, Simulation, Stall, simulate
from passes.simulation.transfers import TransferTime, simulate_transfers
