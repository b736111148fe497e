# SPDX-License-Identifier: Apache-2.0
"""The pictures of ``docs/layer_group.md``, all drawn from a real plan.

The example is a chain of a convolution, ReLU, a pooling and a convolution on images of 56x56 with
64 channels in half precision, on a CV184X: eight lanes of 64 KiB.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.target import Target

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import Chip, PlannedGroup, plan_group
from passes.layer_group.transform import LayerGroupOptions, chip_of
from passes.planning import Plan, Problem, check
from target_hw.memory import MemoryScope
from tvm_ext.report.chart import INK, Box, Chart, Picture, legend, picture
from tvm_ext.report.picture import draw_plans

_CHANNELS, _SIZE = 64, 56
NAMES = ("image", "conv", "relu", "pool", "result")
"""What the tensors of the chain are called."""


def chain() -> tvm.IRModule:
    """Return the module of the example."""
    builder = relax.BlockBuilder()
    image = (1, _CHANNELS, _SIZE, _SIZE)
    filters = (_CHANNELS, _CHANNELS, 3, 3)
    shapes = {"image": image, "w1": filters, "w2": filters}
    params = [relax.Var(name, relax.TensorType(shape, "float16")) for name, shape in shapes.items()]
    image, w1, w2 = params
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            conv = builder.emit(relax.op.nn.conv2d(image, w1, padding=(1, 1)), "conv")
            relu = builder.emit(relax.op.nn.relu(conv), "relu")
            pool = builder.emit(relax.op.nn.max_pool2d(relu, (2, 2), (2, 2)), "pool")
            made = builder.emit_output(relax.op.nn.conv2d(pool, w2, padding=(1, 1)), "result")
        builder.emit_func_output(made)
    return relax.transform.LegalizeOps()(builder.get())


def planned_chain(slices: int, keep: bool = False, kib: int | None = None) -> PlannedGroup:
    """Return the chain as one group of so many slices of its rows.

    Parameters
    ----------
    slices : int
        How many.
    keep : bool
        Whether rows that two slices need stay.
    kib : int, optional
        KiB of a lane, in the place of the chip's.
    """
    (block,) = read_networks(chain())
    chip = chip_of(LayerGroupOptions(Target("sophgo/cv184x")))
    if kib is not None:
        memory = MemoryScope(
            chip.memory.name,
            kib * 1024,
            alignment=chip.memory.alignment,
            facts=chip.memory.facts,
        )
        chip = Chip(memory, chip.machine, chip.planner)
    group = NetworkIndex(block.network).group(0, len(block.network.layers) - 1)
    planned = plan_group(group, Cut(h=slices, keep_rows=keep), chip)
    if planned is None:
        raise ValueError(f"the chain does not fit in {slices} slices")
    check(planned.local.problem, planned.plan)
    return planned


def memory() -> tuple[Picture, str]:
    """Draw local memory without slices, in a memory that is large enough, and in four slices."""
    maps: list[tuple[str, Problem, Plan]] = []
    for title, planned in (
        ("one slice, lanes of 256 KiB", planned_chain(1, kib=256)),
        ("four slices, lanes of 64 KiB", planned_chain(4)),
    ):
        maps.append((title, planned.local.problem, planned.plan))
    summary = "; ".join(f"{title}: {plan.peak:,} bytes a lane" for title, _, plan in maps)
    return draw_plans(maps), summary


def slices() -> tuple[Picture, str]:
    """Draw which rows of each tensor four slices hold: computed again, and kept."""
    colours, parts = ("#5b9bd5", "#ee8866", "#44bb99", "#aaaa00"), []
    for column, keep in enumerate((False, True)):
        planned, left = planned_chain(4, keep, 128), 60 + 460 * column
        chart = Chart((left, 40, left + 400, 360), (0, len(NAMES)), (_SIZE, 0))
        for number, colour in enumerate(colours):
            held: list[Box] = []
            made: list[Box] = []
            for at, name in enumerate(NAMES):
                tensor, x = planned.slices.tensors[name], at + 0.1 + 0.2 * number
                for found, rows in ((held, tensor.holds), (made, tensor.makes)):
                    begin, end = rows[2].spans.ranges[number]
                    found.append((x, end, x + 0.18, begin))
            chart.boxes(held, colour, "none", opacity="0.45")
            chart.boxes(made, colour, "none")
        title = "rows are kept" if keep else "rows are computed again"
        rows = [(at, str(at)) for at in range(0, _SIZE + 1, 8)]
        chart.frame(
            title,
            "rows of each tensor, from the top down",
            "",
            [(at + 0.5, name) for at, name in enumerate(NAMES)],
            rows,
        )
        parts += chart.parts
    entries = [(f"slice {n}", colour, "none") for n, colour in enumerate(colours, 1)]
    entries.append(("pale: held from the slice before", "none", INK))
    return picture(940, 480, [*parts, *legend(60, 396, entries)]), (
        "made: full colour; held from before: pale"
    )


PICTURES = {"layer_group_slices.svg": slices, "layer_group_memory.svg": memory}
"""By file name: what draws it."""
