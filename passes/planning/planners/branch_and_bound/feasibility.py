# SPDX-License-Identifier: Apache-2.0
"""What the search asks again and again: is there a plan below a capacity.

Branch and bound finds out. How long that takes depends so much on the order of equals that
several orders take turns, each going on where it stopped, with more placements every round: the
round robin of MiniMalloc. On large problems the search places the critical core only, the blocks
that live where most bytes are live, and first fit puts the rest around it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.engine.orders import FAST_ORDERS, Measures, ordered
from passes.planning.planner import BudgetTracker
from passes.planning.planners.branch_and_bound import loop
from passes.planning.planners.branch_and_bound.search import (
    BranchAndBound,
    Outcome,
    Packing,
    pack,
)
from passes.planning.planners.first_fit import fit_blocks

WHOLE_BLOCKS = 3000  # Blocks up to which the search is asked for all of a problem
FIRST_WORK = 2_500_000  # Blocks looked at in the first, short turns: half a second in plain Python
CORE_SHARE = 0.95
"""What share of the capacity must be live at once to make a block part of the first core."""
REST_ORDERS = 4 * FAST_ORDERS
"""Orders of first fit for the rest, one each time that the core has grown."""
STEP_WORK = 4_000_000  # Blocks looked at between two looks at the clock


@dataclass(frozen=True)
class Attempt:
    """An order of blocks of equal reach: greatest first by each measure in turn."""

    by_load: bool  # Whether the bytes left where a block is live come before the measures
    measures: str  # ``L`` life, ``A`` area, ``S`` size, ``C`` number of conflicts
    seed: int = 0  # Other than 0, each measure is varied at random by up to 30 %

    def ranks(self, packing: Packing) -> list[int]:
        """Return the rank of each block."""
        rng = random.Random(self.seed)
        columns: list[list[float]] = []
        for measure in self.measures:
            values = _measure(packing, measure)
            if self.seed:
                values = [value * rng.uniform(0.7, 1.3) for value in values]
            columns.append([-value for value in values])
        order = sorted(range(len(packing)), key=lambda b: (*(c[b] for c in columns), b))
        ranks = [0] * len(packing)
        for rank, block in enumerate(order):
            ranks[block] = rank
        return ranks


ATTEMPTS = (
    Attempt(True, "LA"),
    Attempt(True, "CL"),
    Attempt(False, "LA"),
    Attempt(True, "AL"),
    Attempt(True, "LA", 2),
    Attempt(False, "LA", 1),
    Attempt(True, "SL", 2),
    Attempt(True, "AL", 3),
    Attempt(False, "CL", 4),
    Attempt(False, "LA", 4),
)
SEEDS = 5  # Seeds below this are those of the first turn


def _measure(packing: Packing, name: str) -> Sequence[float]:
    if name == "L":
        return packing.life
    if name == "S":
        return packing.sizes
    if name == "A":
        return [size * life for size, life in zip(packing.sizes, packing.life, strict=True)]
    return packing.degrees


@dataclass(frozen=True)
class Answer:
    """What is known after asking: an offset for each block if `FOUND`."""

    outcome: Outcome
    offsets: list[int] | None = None


class FeasibilityCheck:
    """Finds out whether one block list can be placed below a capacity.

    Penalties play no part, nor does the capacity of the block list's own problem.
    """

    def __init__(self, block_list: BlockList) -> None:
        self._block_list = block_list
        self._free = [
            block
            for block, size in enumerate(block_list.sizes)
            if size and block not in block_list.pinned
        ]
        self._measures = Measures(block_list)
        self._packed: Packing | None = None

    def run(self, capacity: int, tracker: BudgetTracker, turn: int = 0) -> Answer:
        """Ask whether all blocks can end at `capacity` bytes or below.

        The outcome is `PAUSED` if the tracker stopped the search or first fit left a block over.
        Another `turn` tries other orders.
        """
        if self._block_list.bound > capacity:
            return Answer(Outcome.EXHAUSTED)
        core = self._free if len(self._free) <= WHOLE_BLOCKS else self._core(capacity)
        attempts = [replace(a, seed=a.seed + turn * SEEDS) for a in ATTEMPTS]
        kept: dict[int, int] = {}
        for order in REST_ORDERS:
            if not 0 < len(core) <= WHOLE_BLOCKS:
                break
            if self._packed is None or self._packed.blocks != core:
                self._packed = pack(self._block_list, core)
            outcome, found = _search(self._packed, capacity, tracker, attempts)
            if outcome is not Outcome.FOUND:
                return Answer(outcome)
            fixed = kept | dict(zip(core, found, strict=True))
            blocks = ordered(self._measures, order)
            offsets = fit_blocks(
                self._block_list, blocks, fixed=fixed, limit=capacity, tracker=tracker
            )
            tracker.spend(len(offsets) - len(fixed))
            left_over = [block for block in self._free if offsets[block] == UNPLACED]
            if not left_over:
                return Answer(Outcome.FOUND, offsets)
            if tracker.expired:
                break
            core = self._grown(core, left_over)
            kept = self._clear_of(core, offsets)
        return Answer(Outcome.PAUSED)

    def _clear_of(self, core: list[int], offsets: list[int]) -> dict[int, int]:
        """Return the offsets of the blocks that meet none of `core`: they can stay."""
        met = {*core}
        for block in core:
            met.update(self._block_list.met_by(block).tolist())
        return {b: offsets[b] for b in self._free if b not in met and offsets[b] != UNPLACED}

    def _core(self, capacity: int) -> list[int]:
        """Return the blocks that live where nearly all of the capacity is needed."""
        return [b for b in self._free if self._measures.load[b] > CORE_SHARE * capacity]

    def _grown(self, core: list[int], left_over: list[int]) -> list[int]:
        """Return `core` with the blocks that first fit could not place, and all they compete with.

        Where these live is what first fit is too weak for; elsewhere it did well.
        """
        grown = {*core, *left_over}
        for block in left_over:
            grown.update(self._block_list.met_by(block).tolist())
            if len(grown) > WHOLE_BLOCKS:
                break  # no search takes so many
        return [block for block in self._free if block in grown]


def _search(
    packing: Packing, capacity: int, tracker: BudgetTracker, attempts: Sequence[Attempt]
) -> tuple[Outcome, list[int]]:
    """Let all attempts take turns until one has an answer; return it and the offsets.

    The first turns are short and taken in plain Python unless the compiled search is there
    already: most questions end there, and need not wait for the compiler.
    """
    limit = 2 * len(packing)
    is_fast = compiled.is_loaded(loop.advance)
    first = attempts[: FIRST_WORK // (limit * len(packing))]
    outcome, offsets = _round_robin(packing, capacity, tracker, is_fast, first, [limit])
    if outcome is not Outcome.PAUSED:
        return outcome, offsets
    limits = (limit << turn for turn in range(62))
    is_fast = compiled.loop(loop.advance) is not None
    return _round_robin(packing, capacity, tracker, is_fast, attempts, limits)


def _round_robin(
    packing: Packing,
    capacity: int,
    tracker: BudgetTracker,
    is_compiled: bool,
    attempts: Sequence[Attempt],
    limits: Iterable[int],
) -> tuple[Outcome, list[int]]:
    """Let each attempt go on for as many placements as each limit says."""
    running: dict[Attempt, BranchAndBound] = {}
    for limit in limits:
        for attempt in attempts:
            if tracker.left == 0:
                return Outcome.PAUSED, []
            if attempt not in running:
                ranks = attempt.ranks(packing)
                running[attempt] = BranchAndBound(
                    packing, ranks, attempt.by_load, capacity, is_compiled
                )
            outcome = _advance(running[attempt], limit, len(packing), tracker)
            if outcome is not Outcome.PAUSED:
                return outcome, running[attempt].offsets
    return Outcome.PAUSED, []


def _advance(search: BranchAndBound, limit: int, blocks: int, tracker: BudgetTracker) -> Outcome:
    """Let a search go on for `limit` placements, as far as the tracker goes."""
    step = max(1, STEP_WORK // max(1, blocks))
    outcome = Outcome.PAUSED
    while outcome is Outcome.PAUSED and limit > 0 and tracker.left:
        before = search.nodes
        outcome = search.advance(min(limit, step, tracker.left))
        limit -= step
        tracker.spend(search.nodes - before)
    return outcome
