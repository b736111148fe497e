# SPDX-License-Identifier: Apache-2.0
"""Planners as one run of the pass asks them: equal problems once, and slots within one budget.

Functions of one module often have equal tensors, such as those that differ in their weights alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from passes.driver import Solver
from passes.gmem.options import BEST, SHORT_NODES, SLOT_NODES, GMEMOptions
from passes.gmem.planning.slot_search import plan_slots
from passes.planning import Budget, Plan, Problem


class Solvers:
    """Asks planners for one module."""

    def __init__(self, planner: str, options: GMEMOptions) -> None:
        self.planner = planner
        self._by_planner = options.solver(planner)
        self._best_again = options.solver(BEST, most=SHORT_NODES)
        self._budget = options.budget or Budget()
        self._slot_nodes = min(self._budget.nodes, SLOT_NODES)
        self._known: dict[Hashable, tuple[Plan, tuple[tuple[int, ...], ...]]] = {}

    def offsets(self, problem: Problem) -> Plan:
        """Return the plan of the planner that the user names."""
        return self._once("offsets", problem, self._by_planner)

    def again(self, problem: Problem) -> Plan:
        """Return a plan where another one is known already, and this may be better."""
        return self._once("again", problem, self._best_again)

    def slots(self, problem: Problem) -> Plan:
        """Return a plan in whole slots."""
        return self._once("slots", problem, self._in_slots)

    def _in_slots(self, problem: Problem) -> Plan:
        budget = replace(self._budget, nodes=max(self._slot_nodes, 1))
        plan, _ = plan_slots(problem, budget)
        self._slot_nodes -= plan.nodes
        return plan

    def _once(self, kind: str, problem: Problem, solver: Solver) -> Plan:
        if problem.in_place or problem.separations or problem.penalties:
            return solver(problem)
        buffers = tuple(replace(buffer, name="") for buffer in problem.buffers)
        key = kind, problem.memory, buffers
        names = [buffer.name for buffer in problem.buffers]
        if key not in self._known:
            plan = solver(problem)
            if len(plan.offsets) != len(names):  # It has not found a place for each.
                return plan
            self._known[key] = plan, tuple(plan.offsets[name] for name in names)
        plan, offsets = self._known[key]
        return replace(plan, offsets=dict(zip(names, offsets, strict=True)))
