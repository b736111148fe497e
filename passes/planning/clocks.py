# SPDX-License-Identifier: Apache-2.0
"""Lives on several clocks, for programs whose parts run at once: streams, cores, queues.

A moment is a position on each of several clocks, such as how far each of two streams is at least.
One moment is surely before another, or at it, if it is so on every clock. A buffer that ends
before, or when, another begins is never live with it; all others can be, in one order of the
streams or in another. These are the vector clocks of C. J. Fidge and F. Mattern, and as OmniMalloc
writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import ADDRESS_LIMIT, LiveRange
from target_hw.memory import as_plain, is_byte_count, is_list

Moment = tuple[int, ...]
"""A position on each clock."""

MOST_PAIRS = 1_000_000
"""Pairs that are live together in some order, but not in the one chosen, beyond which a problem is
refused: each takes some hundred bytes."""
WEIGHED_BUFFERS = 2000  # Buffers up to which the fullest moment is looked for
ROWS_AT_ONCE = 256

Truths = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


def concurrent_lives(
    lives: Mapping[str, tuple[Moment, Moment]], sizes: Mapping[str, int] | None = None
) -> tuple[dict[str, LiveRange], tuple[tuple[str, str], ...]]:
    """Return lives on several clocks as live ranges in one order, and the pairs that these miss.

    With the ranges as the `live` of buffers and the pairs as the `separations` of a problem, two
    buffers conflict exactly if they can be live together. Where that is not too much work, the
    order is one that passes the moment at which the most bytes can be live: then no set of buffers
    that conflict with each other has more bytes than are live at one position.

    Parameters
    ----------
    lives : mapping of str to (Moment, Moment)
        By buffer name, the moment at which its life begins and the one at which it ends. Nothing
        happens to a buffer from its end on.
    sizes : mapping of str to int, optional
        Bytes by buffer name, of all slots; without them, every buffer counts the same.

    Returns
    -------
    live : dict of str to LiveRange
    separations : tuple of (str, str)

    Raises
    ------
    ValueError
        If moments are not all of equally many clocks, an end is not after its begin, or more than
        `MOST_PAIRS` pairs would have to be listed; the message names the buffer.
    """
    names = list(lives)
    begins, ends = _moments(lives)
    if not names:
        return {}, ()
    weights = [1 if sizes is None else int(sizes[name]) for name in names]
    # A time before, or at, another on all clocks has a sum of positions that is no greater.
    begun, ended = _fullest(begins, ends, weights)
    keys = [*zip(~begun, begins.sum(axis=1), strict=True)]
    keys += zip(~ended, ends.sum(axis=1), strict=True)
    place = {key: at for at, key in enumerate(sorted(set(keys)))}
    first, last = (
        np.array([place[key] for key in part], dtype=np.int64)
        for part in (keys[: len(names)], keys[len(names) :])
    )
    pairs: list[tuple[str, str]] = []
    for low in range(0, len(names), ROWS_AT_ONCE):
        rows = slice(low, low + ROWS_AT_ONCE)
        apart = _before(ends[rows], begins) | _before(ends, begins[rows]).T
        together = (first[rows, None] < last) & (first < last[rows, None])
        ones, twos = np.nonzero(np.triu(~apart & ~together, low + 1))
        if len(pairs) + len(ones) > MOST_PAIRS:
            raise ValueError(
                f"buffer {names[low]!r}: with it, more than {MOST_PAIRS:,} pairs can be live "
                f"together in some order of {begins.shape[1]} clocks alone, which is too many to "
                "list: plan fewer buffers at once"
            )
        pairs += [
            (names[low + a], names[b]) for a, b in zip(ones.tolist(), twos.tolist(), strict=True)
        ]
    live = dict(zip(names, zip(first.tolist(), last.tolist(), strict=True), strict=True))
    return live, tuple(pairs)


def _moments(lives: Mapping[str, tuple[Moment, Moment]]) -> tuple[Places, Places]:
    """Return the begins and the ends as rows of positions, or say which one is wrong."""
    rows: list[list[Any]] = []
    for name, life in lives.items():
        where = f"buffer {name!r}: its life"
        if not is_list(life) or len(life) != 2 or not all(map(is_list, life)):
            raise ValueError(f"{where} must be two moments (begin, end), got {life!r}")
        moments: list[list[Any]] = [list(map(as_plain, moment)) for moment in life]
        begin, end = moments
        if not all(is_byte_count(at) and abs(at) < ADDRESS_LIMIT >> 16 for at in (*begin, *end)):
            raise ValueError(f"{where} must have integers within 2**46, got {life!r}")
        clocks = len(rows[0]) // 2 if rows else len(begin)
        if not clocks or (len(begin), len(end)) != (clocks, clocks):
            raise ValueError(f"{where} must have a position on each of {clocks} clocks: {life!r}")
        if begin == end or any(b < a for a, b in zip(begin, end, strict=True)):
            raise ValueError(f"{where} must end after it begins, and on no clock before: {life!r}")
        rows.append([*begin, *end])
    begins, ends = np.split(np.array(rows or [[0, 0]], dtype=np.int64), 2, axis=1)
    return begins, ends


def _before(ends: Places, begins: Places) -> Truths:
    """Return for each end and each begin whether the end is at or before it on every clock."""
    found = np.ones((len(ends), len(begins)), dtype=bool)
    for end, begin in zip(ends.T, begins.T, strict=True):
        found &= end[:, None] <= begin
    return found


def _fullest(begins: Places, ends: Places, weights: list[int]) -> tuple[Truths, Truths]:
    """Return who has begun and who has ended at a moment at which the most bytes can be live.

    Such a moment is a set of begins and ends that has, with each, all that is surely before it.
    Its bytes are a sum over the set: so it is a closure of greatest weight (J.-C. Picard, 1976),
    which the linear program below has at a corner. With very many buffers nobody has begun, which
    is right as well.
    """
    count = len(weights)
    nobody = np.zeros(count, dtype=bool)
    if begins.shape[1] == 1 or count > WEIGHED_BUFFERS:
        return nobody, nobody
    import highspy  # It takes a while to import

    before = _before(ends, begins)
    # Only who ends right before another begins: what is before that follows.
    reach = before.astype(np.float32)
    ended, begun = np.nonzero(before & (reach @ reach < 0.5))
    # Of each row the first has happened if the second one has: begins are numbered before ends.
    one = np.concatenate((np.arange(count), count + ended))
    two = np.concatenate((count + np.arange(count), begun))
    # The class around it greets on standard output.
    solver = highspy._Highs()  # type: ignore[attr-defined]
    for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(option, value)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = 2 * count, len(one)
    scale = max(1, *weights)
    program.col_cost_ = np.array([*(-w / scale for w in weights), *(w / scale for w in weights)])
    program.col_lower_, program.col_upper_ = np.zeros(2 * count), np.ones(2 * count)
    program.row_lower_ = np.zeros(len(one))
    program.row_upper_ = np.full(len(one), highspy.kHighsInf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.arange(len(one) + 1) * 2
    program.a_matrix_.index_ = np.stack((one, two), axis=1).ravel()
    program.a_matrix_.value_ = np.tile([1.0, -1.0], len(one))
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return nobody, nobody
    has_begun = np.array(solver.getSolution().col_value)[:count] > 0.5
    has_ended: Truths = np.logical_or.reduce(before[:, has_begun], axis=1)
    return np.logical_or(has_begun, has_ended), has_ended
