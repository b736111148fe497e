# SPDX-License-Identifier: Apache-2.0
"""Scratch memory that CMSIS-NN's kernels ask for, which the reference kernels do not.

A device with an Arm core runs CMSIS-NN's kernels in the place of the reference ones, and these ask
for memory besides. A plan that leaves no room for it can take more there than the device's own.

Source: ``arm_*_get_buffer_sizes_s8.c`` of ARM-software/CMSIS-NN, for operands of int8. Where a size
depends on the compiler or on padding, the largest one counts.
"""

from __future__ import annotations

from math import prod

from target_hw.memory import round_up
from tvm_ext.hosts.tflite_micro.arena_head import Scratch
from tvm_ext.hosts.tflite_micro.read_model import Model, Operator, Subgraph

CORES = ("dsp", "mve")
"""Cores with the DSP extension (Cortex-M4, M7, M33), and with Helium (Cortex-M55, M85)."""

_DEPTHWISE_BLOCK = 124  # CH_IN_BLOCK_MVE: channels that are taken together


def cmsis_nn_scratch(model: Model, core: str) -> Scratch:
    """Return the bytes of scratch memory by subgraph and operator, for one of `CORES`."""
    if core not in CORES:
        raise ValueError(f"CMSIS-NN: there are the cores {', '.join(CORES)}, got {core!r}")
    found = {}
    for number, graph in enumerate(model.subgraphs):
        for position, one in enumerate(graph.operators):
            size = _bytes_of(graph, one, core)
            if size:
                found[number, position] = size
    return found


def _bytes_of(graph: Subgraph, one: Operator, core: str) -> int:
    if not one.operands or graph.tensors[one.operands[0]].type != "int8":
        return 0
    shapes = [graph.tensors[operand].shape for operand in one.operands]
    channels = shapes[0][-1] if shapes[0] else 1
    if one.name == "AVERAGE_POOL_2D":
        return 4 * channels if core == "dsp" else 0
    if one.name == "FULLY_CONNECTED" and len(shapes[1]) == 2:
        return 4 * shapes[1][0] if core == "mve" else 0
    if one.name == "CONV_2D" and len(shapes[1]) == 4:
        return _convolution(prod(shapes[1][1:3]), channels, core)
    if one.name == "DEPTHWISE_CONV_2D" and len(shapes[1]) == 4:
        window, out = prod(shapes[1][1:3]), shapes[1][3]
        if core == "mve":
            apart = 4 * _DEPTHWISE_BLOCK * window if channels == out else 0
            as_one = _convolution(window, 1, core) + window * out if channels == 1 else 0
            return max(apart, as_one)
        return 0 if channels != out or shapes[1][1:3] == (3, 3) else 2 * channels * window
    return 0


def _convolution(window: int, channels: int, core: str) -> int:
    """Return the bytes of a convolution: columns of its input, one after the other."""
    if core == "dsp":
        return 4 * (channels if window == 1 else round_up(window * channels, 4))
    return 0 if window == 1 else 4 * round_up(window * channels, 16)
