"""Moving buffers on the loop that TVM compiles.

The loop itself is `passes.planning.engine.relocate.kernel`; its arrays are made and read here.
"""

from __future__ import annotations

from passes.planning.engine import compiled
from passes.planning.engine.relocate.steps import MOST_OUT, NOISE, Relocation

LOOP = "relocate"

# Columns of `blocks`.
SIZE, ALIGNMENT, OWNER, FIXED, LOW, BEST = range(6)
# Columns of `buffers`.
FIRST, SLOTS, OWES = range(3)
# Columns of `relations`.
OTHER, HARD, PARTNER, EQUAL, CROSSED, PENALTY, PRICE = range(7)
# Columns of `penalties`: the payers' indices, what is due in step and out of step, and how many
# pairs of blocks share, and do so out of step.
ONE, TWO, COST_IN_STEP, COST, MET, MET_CROSSED = range(6)
# Columns of `reserved`, and of `taken`: a block that was taken out, and where it was.
BEGIN, END = range(2)
T_BLOCK, T_LOW = range(2)
# Entries of `state`.
NODES, TOTAL, SEED, BEST_COST, BEST_PEAK, CAPACITY, RESERVED = range(7)
STEPS, HEAT, STOP = range(7, 10)
STATE_SIZE = 10
LOCAL_SIZE = 40


class CompiledRelocation:
    """A `Relocation` that goes on compiled; the same attributes."""

    def __init__(self, plain: Relocation) -> None:
        rows = plain.relations
        self._plain = plain
        self._blocks = compiled.columns(
            plain.sizes, plain.alignments, plain.owner, plain.fixed, plain.low, plain.best
        )
        reserved = plain.reserved or [(0, 0)]
        ones, twos = zip(*plain.payers, strict=True)
        in_step, costs = zip(*plain.costs, strict=True)
        self._buffers = compiled.columns(plain.first, plain.slots, plain.owes)
        self._penalties = compiled.columns(ones, twos, in_step, costs, plain.met, plain.crossed)
        self._state = compiled.aligned([0] * STATE_SIZE)
        self._state[: RESERVED + 1] = (
            plain.nodes,
            plain.cost,
            plain.seed,
            *plain.score,
            plain.capacity,
            len(plain.reserved),
        )
        due_begins, due_values = [0], []
        for dues in plain.dues:
            due_values += dues
            due_begins.append(len(due_values))
        self._tensors = compiled.tensors(
            (
                self._blocks,
                self._buffers,
                compiled.aligned(rows.begins),
                compiled.columns(
                    rows.others,
                    rows.hard,
                    rows.partner,
                    rows.equal,
                    rows.crossed,
                    rows.penalty,
                    rows.price,
                ),
                self._penalties,
                compiled.aligned(due_begins),
                compiled.aligned(due_values),
                compiled.columns(*zip(*reserved, strict=True)),
                compiled.aligned(NOISE),
                compiled.aligned(plain.prices),
                compiled.empty((MOST_OUT + 2,)),
                compiled.empty((len(plain.low) + 1, 2)),
                compiled.empty((LOCAL_SIZE,)),
                self._state,
            )
        )

    @property
    def nodes(self) -> int:
        """Blocks put back so far."""
        return int(self._state[NODES])

    @property
    def score(self) -> tuple[int, int]:
        """The penalty and the peak, in bytes, of the best placement so far."""
        return int(self._state[BEST_COST]), int(self._state[BEST_PEAK])

    @property
    def best(self) -> list[int]:
        """The best placement so far: bytes, for each block."""
        offsets: list[int] = self._blocks[:, BEST].tolist()
        return offsets

    @property
    def low(self) -> list[int]:
        """For each block its offset in bytes, as the plan is now."""
        offsets: list[int] = self._blocks[:, LOW].tolist()
        return offsets

    def restart(self) -> None:
        """Go back to the best plan."""
        self._plain.restart_at(self.best)
        self._blocks[:, LOW] = self._plain.low
        self._buffers[:, OWES] = self._plain.owes
        self._penalties[:, MET] = self._plain.met
        self._penalties[:, MET_CROSSED] = self._plain.crossed
        self._state[TOTAL] = self._plain.cost

    def advance(self, steps: int, heat: int, limit: int) -> None:
        """Take steps at one heat until `limit` more nodes; see `Relocation.advance`."""
        run = compiled.loop(LOOP)
        assert run is not None, "only asked for where the loop can be compiled"
        self._state[STEPS], self._state[HEAT] = steps, heat
        self._state[STOP] = self.nodes + min(limit, 1 << 61)
        run(*self._tensors)
