# SPDX-License-Identifier: Apache-2.0
"""Scratch memory that CMSIS-NN's kernels ask for, which the reference kernels do not.

A device with an Arm core runs CMSIS-NN's kernels in the place of the reference ones, and these ask
for memory besides. A plan that leaves no room for it can take more there than the device's own.

Source: ``arm_*_get_buffer_sizes_s8.c`` and ``_s16.c`` of ARM-software/CMSIS-NN, as the kernels of
``micro/kernels/cmsis_nn`` call them; other operands than int8 and int16 have reference kernels.
Where a size depends on the compiler or on padding, the largest one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from target_hw.memory import round_up
from tvm_ext.hosts.tflite_micro.arena_head import Scratch
from tvm_ext.hosts.tflite_micro.read_model import Model, TfliteTensor

CORES = ("dsp", "mve")
"""Cores with the DSP extension (Cortex-M4, M7, M33), and with Helium (Cortex-M55, M85)."""

_DEPTHWISE_BLOCK = 124  # CH_IN_BLOCK_MVE: channels that are taken together


def cmsis_nn_scratch(model: Model, core: str) -> Scratch:
    """Return the bytes of scratch memory by subgraph and operator, for one of `CORES`.

    ValueError is raised for another core, and for an operator whose scratch memory is not known.
    """
    if core not in CORES:
        raise ValueError(f"CMSIS-NN: there are the cores {', '.join(CORES)}, got {core!r}")
    found = {}
    for number, graph in enumerate(model.subgraphs):
        for position, one in enumerate(graph.operators):
            given = [graph.tensors[operand] for operand in one.operands]
            if one.name == "TRANSPOSE_CONV" and any(each.type == "int8" for each in given[2:]):
                raise ValueError(
                    f"{model.name}: the scratch memory that CMSIS-NN's kernel of {one.name} "
                    f"(operator {position}) asks for is not known: leave the kernels out"
                )
            result = [graph.tensors[output] for output in one.outputs]
            size = _bytes_of(one.name, given, result, core)
            if size:
                found[number, position] = size
    return found


def _bytes_of(
    name: str, given: Sequence[TfliteTensor], result: Sequence[TfliteTensor], core: str
) -> int:
    if not given or given[0].type not in ("int8", "int16"):
        return 0
    shapes, is_wide = [each.shape for each in given], given[0].type == "int16"
    channels = shapes[0][-1] if shapes[0] else 1
    if name == "AVERAGE_POOL_2D":
        return 4 * channels if core == "dsp" else 0
    if name in ("FULLY_CONNECTED", "BATCH_MATMUL") and not is_wide and result[0].shape:
        return 4 * result[0].shape[-1] if core == "mve" else 0
    if name not in ("CONV_2D", "DEPTHWISE_CONV_2D") or len(shapes[1]) != 4:
        return 0
    window, out = prod(shapes[1][1:3]), shapes[1][3]
    if name == "CONV_2D":
        if is_wide:
            columns = window * channels
            return 4 * columns if core == "dsp" else 8 * round_up(columns, 8)
        return _convolution(window, channels, core)
    if is_wide:
        columns = window * channels if channels == out else 0
        return 2 * columns if core == "dsp" else 8 * columns + 8 * bool(columns)
    if core == "mve":
        apart = 4 * _DEPTHWISE_BLOCK * window if channels == out else 0
        as_one = _convolution(window, 1, core) + window * out if channels == 1 else 0
        return max(apart, as_one)
    return 0 if channels != out or shapes[1][1:3] == (3, 3) else 2 * channels * window


def _convolution(window: int, channels: int, core: str) -> int:
    """Return the bytes of a convolution: columns of its input, one after the other."""
    if core == "dsp":
        return 4 * (channels if window == 1 else round_up(window * channels, 4))
    return 0 if window == 1 else 4 * round_up(window * channels, 16)
