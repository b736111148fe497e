# SPDX-License-Identifier: Apache-2.0
"""What each axis of a tensor is to the hardware: batch, channels across the lanes, rows, the rest.

Relax tensors do not say it. Operators do: a convolution sums over the channels and keeps rows and
columns. So the letters of a network's inputs are taken from the first operator that sums over the
products of two operands, or else over one, and every other tensor has them from what it is computed
from, through the axis maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from passes.layer_group.planning.network import InputMap

_USUAL = {0: "", 1: "c", 2: "nc", 3: "nhc", 4: "nchw"}
_CHANNELS_LAST = {3: "nhc", 4: "nhwc"}
_CHANNELS_FIRST = {3: "nch", 4: "nchw"}


def usual_letters(rank: int) -> str:
    """Return the letters of a tensor of which nothing is known but its number of axes."""
    return _USUAL.get(rank, "nch" + "w" * (rank - 3))


def letters_by_contraction(shape: Sequence[int], axis_maps: InputMap) -> str | None:
    """Return the letters of a tensor whose channels an operator sums over.

    The result is None where the maps do not tell the channels from rows and columns.
    """
    rank = len(shape)
    whole = [a for a in range(1, rank) if shape[a] > 1 and axis_maps[a] is None]
    if rank not in _CHANNELS_LAST or len(whole) != 1 or any(n == 1 for n in shape[1:]):
        return None
    if whole[0] == rank - 1:
        return _CHANNELS_LAST[rank]
    return _CHANNELS_FIRST[rank] if whole[0] == 1 else None


def output_letters(shape: Sequence[int], sources: Sequence[tuple[str, InputMap]]) -> str:
    """Return the letters of what an operator makes.

    An axis has the letter of the first input's axis that is mapped onto it. One that none is mapped
    onto has the letter at the same place, if the input has as many axes. What that leaves open, the
    next input says.
    """
    rank = len(shape)
    chosen: dict[int, str] = {}
    for letters, axis_maps in sources:
        for letter, axis_map in zip(letters, axis_maps, strict=True):
            if axis_map is not None and axis_map.axis not in chosen:
                chosen[axis_map.axis] = letter
        if len(letters) == rank:
            for axis in range(rank):
                if axis not in chosen and letters[axis] not in chosen.values():
                    chosen[axis] = letters[axis]
    for axis in range(rank):
        if axis not in chosen:
            chosen[axis] = _left_over(axis, shape, chosen)
    return "".join(chosen[axis] for axis in range(rank))


def _left_over(axis: int, shape: Sequence[int], chosen: Mapping[int, str]) -> str:
    """Return a letter for an axis that nothing is mapped onto."""
    taken = set(chosen.values())
    if axis == 0 and "n" not in taken and len(shape) > 1:
        return "n"
    if "c" not in taken and shape[axis] > 1:
        return "c"
    return "w"


def weight_letters(output: str, axis_maps: InputMap) -> str:
    """Return the letters of a weight: those of the output's axes that its axes are mapped onto."""
    letters = ["w" if m is None else output[m.axis] for m in axis_maps]
    if "c" not in letters and len(letters) == 1:
        return "c"
    return "".join(letters)
