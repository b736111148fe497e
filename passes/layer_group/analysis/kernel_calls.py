# SPDX-License-Identifier: Apache-2.0
"""A kernel call as a layer: what it reads for a slice of its result, and where it works."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from passes.ir import tir
from passes.layer_group.analysis.read_kernel import Kernel
from passes.layer_group.analysis.regions import stage_reads
from passes.layer_group.analysis.stages import Stage, variables_in
from passes.layer_group.planning.cut import FURTHER
from passes.layer_group.planning.network import Layer, WorkingBuffer
from passes.layer_group.planning.spans import AxisMap, AxisMaps, Spans

_StageReads = Mapping[tuple[int, ...], Mapping[int, AxisMaps]]
"""The reads of each stage from each buffer, along the axes of its output; by its `writes`."""


@dataclass(frozen=True)
class KernelCall:
    """One result of a kernel, which a layer makes."""

    kernel: Kernel
    parameter: int  # The number of the kernel's parameter that is the result
    reads: Mapping[int, AxisMaps]  # The part read of each parameter, along the result's axes
    made: Mapping[int, AxisMaps]  # The part needed of each buffer that the kernel makes
    stage_reads: _StageReads
    cut: tuple[int, ...] = ()  # Axes of the result that a group may cut
    parts: tuple[int, ...] = ()  # Axes that it may be made in parts of
    uncut: str = ""  # Letters of axes that are left as they are

    def __hash__(self) -> int:
        return hash((id(self.kernel), self.parameter, self.cut, self.parts))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the parameters that are read."""
        return tuple(sorted(self.reads))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the result."""
        return self.kernel.shapes[self.parameter]

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that the result is computed by, in program order."""
        return self.kernel.stages_for(self.parameter)

    @property
    def maps(self) -> tuple[AxisMaps, ...]:
        """For each of `inputs`, the maps of its axes."""
        return tuple(self.reads[p] for p in self.inputs)

    def described(self, layer: Layer) -> Layer:
        """Return a layer with what is known of it, whose inputs are `inputs`."""
        name_of = dict(zip(self.inputs, layer.inputs, strict=True))
        return replace(
            layer,
            multiply_adds=sum(stage.operations for stage in self.stages),
            buffers=tuple(self.working.values()),
            parts=self.parts,
            uncut=self.uncut,
            sums=tuple((name_of[p], axis) for p, axis in self.sums),
            after_sums=tuple((name_of[p], axis, to) for p, axis, to in self.after_sums),
        )

    @cached_property
    def contractions(self) -> tuple[tuple[frozenset[int], ...], ...]:
        """For each axis of each of `inputs`, the reduction variables that contract it, by handle.

        A buffer may be contracted through other buffers. Two axes with a variable in common are
        contracted with each other; an operand that only scales or shifts another one is not.
        """
        none = frozenset[int]()
        found = {self.parameter: (none,) * len(self.shape)}
        for stage in reversed(self.stages):
            made = [found[buffer] for buffer in stage.writes if buffer in found]
            axes = {
                var.__chandle__(): none.union(*of_axis)
                for var, *of_axis in zip(stage.spatial, *made, strict=True)
            }
            inner = {var.__chandle__(): frozenset((var.__chandle__(),)) for var, _ in stage.inner}
            reads = []
            for access in stage.reads:
                used = [variables_in(index).keys() for index in access.indices]
                # A window slides along the result's axis, and what it sums over is contracted by
                # nothing else.
                places = [axes if axes.keys() & keys else inner for keys in used]
                read = [
                    none.union(*(place[key] for key in keys if key in place))
                    for keys, place in zip(used, places, strict=True)
                ]
                reads.append((access.buffer, read, axes.keys() & set().union(*used)))
            for buffer, read, follows in reads:
                # An operand along a strict subset of another's axes only scales or shifts it.
                factor = none.union(
                    *(x for _, read, along in reads if follows < along for x in read)
                )
                before = found.get(buffer, (none,) * len(read))
                found[buffer] = tuple(
                    known | sums - factor for known, sums in zip(before, read, strict=True)
                )
        return tuple(found[p] for p in self.inputs)

    @cached_property
    def layout(self) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """The indices of its one input that each element of the result is, and their variables.

        None where the kernel does more than move elements.
        """
        kernel, stage = self.kernel, self.kernel.stages[0]
        plain = isinstance(stage.body, tir.Store) and isinstance(stage.body.value, tir.Load)
        alone = (len(kernel.stages), kernel.parameters, len(stage.reads)) == (1, 2, 1)
        if not plain or not alone or stage.inner or stage.init is not None:
            return None
        (access,) = stage.reads
        same = kernel.bits(access.buffer) == kernel.bits(self.parameter)
        return (access.indices, stage.spatial) if same and not access.guards else None

    @cached_property
    def memory(self) -> dict[int, int]:
        """For the result and each buffer on the way to it, the buffer in whose memory it lies.

        Buffers share memory where one replaces the other element by element; the result's, only
        where a slice of the result needs the same slice of the other alone.
        """
        home: dict[int, int] = {}
        for head in (buffer for stage in reversed(self.stages) for buffer in stage.writes):
            current = head if head not in home else None
            while current is not None:
                home[current] = head
                current = self._replaced_by(current, home)
        return home

    def _replaced_by(self, buffer: int, home: Mapping[int, int]) -> int | None:
        """Return the allocated buffer whose elements a buffer can replace one by one."""
        kernel, stages = self.kernel, self.stages
        at = next(i for i, stage in enumerate(stages) if buffer in stage.writes)
        later = {access.buffer for stage in stages[at + 1 :] for access in stage.reads}
        for source in (access.buffer for access in stages[at].reads):
            if (
                source >= kernel.parameters
                and source not in later
                and (home[buffer] != self.parameter or self._needs_its_slice(source))
                and kernel.shapes[source] == kernel.shapes[buffer]
                and kernel.bits(source) == kernel.bits(buffer)
                and stages[at].reads_in_place(source)
            ):
                return source
        return None

    def _needs_its_slice(self, buffer: int) -> bool:
        """Return whether every slice of the result needs the part at the same place of a buffer."""
        if self.kernel.shapes[buffer] != self.shape:
            return False
        for axis, (m, extent) in enumerate(zip(self.made[buffer], self.shape, strict=True)):
            if extent == 1:
                continue
            if axis in self.cut or axis in self.parts:
                if m != AxisMap(axis, Spans.identity(extent)):
                    return False
            elif m is not None and m.spans.hull != (0, extent):
                return False
        return True

    @cached_property
    def working(self) -> dict[int, WorkingBuffer]:
        """The working memory of the result, by the buffer that others share it with."""
        found: dict[int, list[AxisMaps]] = {}
        for buffer, home in self.memory.items():
            if home != self.parameter:
                found.setdefault(home, []).append(self.made[buffer])
        kernel = self.kernel
        return {
            home: WorkingBuffer(kernel.bits(home), kernel.shapes[home], united(parts))
            for home, parts in found.items()
        }

    def cut_by(self, axes: Mapping[str, Collection[int]]) -> KernelCall:
        """Return the call with the axes that may be cut, of those with each letter.

        Beside the batch and the rows, a slice along such an axis needs a part of each buffer.
        """
        uncut = "".join(x for x in FURTHER if not self.divisible.issuperset(axes[x]))
        cut = {axis for letter, own in axes.items() if letter not in uncut for axis in own}
        parts = self.divisible.difference(*axes.values())
        return replace(self, cut=tuple(sorted(cut)), parts=tuple(sorted(parts)), uncut=uncut)

    @cached_property
    def divisible(self) -> frozenset[int]:
        """The axes of the result along which a part needs only a part of each buffer on the way."""
        follow = [{m.axis for m in axes if m is not None} for axes in self.made.values()]
        every = {axis for axis, extent in enumerate(self.shape) if extent > 1}
        return frozenset(every.intersection(*follow))

    @cached_property
    def sum_stage(self) -> tuple[Stage, tir.Var, int] | None:
        """The stage that sums before all others, the variable of its outermost sum, its extent."""
        first = self.stages[0]
        inner = [(var, extent) for var, extent in first.inner if extent > 1]
        return (first, *inner[0]) if inner else None

    @cached_property
    def sums(self) -> tuple[tuple[int, int], ...]:
        """Parameters with one axis that the outermost sum goes along, and that axis."""
        if self.sum_stage is None:
            return ()
        kernel, (stage, var, extent) = self.kernel, self.sum_stage
        key = var.__chandle__()
        again = {access.buffer for other in self.stages[1:] for access in other.reads}
        found: dict[int, set[int | None]] = {}
        for access in stage.reads:
            uses = [axis for axis, index in enumerate(access.indices) if key in variables_in(index)]
            plain = len(uses) == 1 and access.indices[uses[0]].same_as(var)
            found.setdefault(access.buffer, set()).add(uses[0] if plain else None)
        return tuple(
            (buffer, axis)
            for buffer, axes in found.items()
            for axis in axes
            if axis is not None
            and len(axes) == 1
            and buffer not in again
            and kernel.shapes[buffer][axis] == extent
        )

    @cached_property
    def after_sums(self) -> tuple[tuple[int, int, int], ...]:
        """Parameters that are read after the sum alone, an axis of each, and that of the result.

        Along the result's axis each index needs its own alone of all working buffers.
        """
        if self.sum_stage is None:
            return ()
        read_before = {access.buffer for access in self.sum_stage[0].reads}
        found = []
        for axis in sorted(self.divisible.difference(self.cut)):
            if any(_along(axes, axis) is None for axes in self.made.values()):
                continue
            for buffer, axes in self.reads.items():
                at = None if buffer in read_before else _along(axes, axis)
                if at is not None and self.kernel.shapes[buffer][at] == self.shape[axis]:
                    found.append((buffer, at, axis))
        return tuple(found)


def _along(axes: AxisMaps, axis: int) -> int | None:
    """Return the one axis of a buffer that is read index by index as an axis of the result."""
    found = [(at, m.spans) for at, m in enumerate(axes) if m is not None and m.axis == axis]
    if len(found) != 1:
        return None
    ((at, spans),) = found
    return at if spans == Spans.identity(len(spans.begin)) else None


def united(parts: Sequence[AxisMaps]) -> AxisMaps:
    """Return what all readers of a buffer read together."""

    def unite(one: AxisMap | None, other: AxisMap | None) -> AxisMap | None:
        if one is None or other is None or one.axis != other.axis:
            return None
        return AxisMap(one.axis, one.spans.union(other.spans))

    return tuple(reduce(unite, column) for column in zip(*parts, strict=True))


def read_results(kernel: Kernel) -> dict[int, KernelCall]:
    """Look at all loads of a kernel; return what it reads for each parameter that it writes.

    Results that are computed from results are left out.
    """
    of_stages = {stage.writes: stage_reads(kernel, stage) for stage in kernel.stages}
    return {
        output: _read_result(kernel, of_stages, output)
        for output in kernel.results
        if not kernel.reads_results(output)
    }


def _read_result(kernel: Kernel, of_stages: _StageReads, output: int) -> KernelCall:
    reads: dict[int, AxisMaps] = {}
    shape = kernel.shapes[output]
    made: dict[int, AxisMaps] = {
        output: tuple(AxisMap(axis, Spans.identity(n)) for axis, n in enumerate(shape))
    }
    for stage in reversed(kernel.stages_for(output)):
        of_stage = united([made[buffer] for buffer in stage.writes if buffer in made])
        made.update((buffer, of_stage) for buffer in stage.writes)
        for buffer, needed in of_stages[stage.writes].items():
            through = tuple(_through(m, of_stage) for m in needed)
            target = reads if buffer < kernel.parameters else made
            target[buffer] = united([target[buffer], through]) if buffer in target else through
    return KernelCall(kernel, output, reads, made, of_stages)


def _through(needed: AxisMap | None, of_stage: AxisMaps) -> AxisMap | None:
    """Return what a stage reads of an axis for the output's axis that its own axis follows.

    A group also computes the indices in gaps between those that the output needs. The elements read
    for these are in neither table, so the whole axis is taken where there may be such indices.
    """
    if needed is None:
        return None
    made = of_stage[needed.axis]
    if made is None or (_has_gaps(made.spans) and not _is_ordered(needed.spans)):
        return None
    return AxisMap(made.axis, made.spans.needed(needed.spans))


def _has_gaps(spans: Spans) -> bool:
    """Return whether some range of the indices skips one between its first and its last."""
    some = spans.begin < spans.end
    begin, end = spans.begin[some], spans.end[some]
    return bool((np.maximum(begin[1:], begin[:-1]) > np.minimum(end[1:], end[:-1])).any())


def _is_ordered(spans: Spans) -> bool:
    """Return whether both ends of the ranges only grow, or only shrink; none alone is empty."""
    return spans.is_rising or Spans(spans.begin[::-1], spans.end[::-1]).is_rising
