"""A kernel call as a layer: what it reads for a slice of what it makes, and where it works."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from passes.analysis.layer_group.regions import KernelReads
from passes.planning.layer_group.network import Box, InputMap

CUT_LETTERS = "nh"
"""Letters of the axes that are cut: the batch, and rows."""


@dataclass(frozen=True, eq=False)
class KernelCall:
    """The call behind a layer.

    Attributes
    ----------
    binding : int
        The number of the binding in its block.
    reads : KernelReads
        The kernel and what it reads.
    parameter : int
        The number of the kernel's parameter that the layer makes.
    inputs : tuple of int
        For each of the layer's inputs, the number of the kernel's parameter.
    letters : str
        Of what it makes; empty while they are not known.
    """

    binding: int
    reads: KernelReads
    parameter: int
    inputs: tuple[int, ...]
    letters: str = ""

    @property
    def maps(self) -> tuple[InputMap, ...]:
        """For each of the layer's inputs, the maps of its axes."""
        of_parameters = self.reads.maps(self.parameter)
        return tuple(of_parameters[p] for p in self.inputs)

    @property
    def operations(self) -> int:
        """Executions of the kernel's statements for the whole result."""
        kernel = self.reads.kernel
        return sum(kernel.stages[i].operations for i in kernel.stages_for(self.parameter))

    @cached_property
    def memory(self) -> dict[int, int]:
        """For the result and each buffer on the way to it, the one in whose memory it lies.

        Buffers share memory where one replaces the other element by element, and the result's only
        where a slice of the result needs no more of the other than that slice.
        """
        made = [(box, self.reads.made_for(self.parameter, box)) for box in self._sample_boxes]
        same = {b for b in made[0][1] if all(parts[b] == box for box, parts in made)}
        return self.reads.kernel.memory(self.parameter, same)

    @cached_property
    def _sample_boxes(self) -> tuple[Box, ...]:
        """The whole result, and its first, middle and last row of an entry of the batch."""
        shape = self.reads.kernel.shape(self.parameter)
        rows = tuple(
            tuple(
                (part * (n - 1) // 2, part * (n - 1) // 2 + 1) if letter in CUT_LETTERS else (0, n)
                for n, letter in zip(shape, self.letters, strict=True)
            )
            for part in (0, 1, 2)
        )
        return (tuple((0, n) for n in shape), *rows)

    def working_boxes(self, box: Box) -> dict[int, Box]:
        """Return the part of each working buffer that is needed for a part of the result.

        Parameters
        ----------
        box : Box
            The part of the result.

        Returns
        -------
        dict of int to Box
            By the buffer in whose memory others may lie: the hull of what they all need.
        """
        made = self.reads.made_for(self.parameter, box)
        boxes: dict[int, Box] = {}
        for buffer, home in self.memory.items():
            if home != self.parameter:
                pairs = zip(boxes.get(home, made[buffer]), made[buffer], strict=True)
                boxes[home] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in pairs)
        return boxes

    def working_bytes(self, extents: dict[int, tuple[int, ...]]) -> int:
        """Return the bytes of working buffers of these extents together."""
        bits = self.reads.kernel.bits
        return sum(-(-prod(shape) * bits(buffer) // 8) for buffer, shape in extents.items())

    @cached_property
    def buffer_bits(self) -> int:
        """Bits of working memory for each element of the result: the most that a slice needs."""
        most = 0
        for box in self._sample_boxes:
            boxes = self.working_boxes(box)
            shapes = {b: tuple(j - i for i, j in part) for b, part in boxes.items()}
            most = max(most, -(-8 * self.working_bytes(shapes) // prod(j - i for i, j in box)))
        return most
