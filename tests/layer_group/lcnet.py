# SPDX-License-Identifier: Apache-2.0
"""PP-LCNet (Cui et al., 2021) at its whole width, for images of 224 x 224."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested
from written_layers import ConvNorm, Model

BLOCKS = (
    *((3, 32, 1, False), (3, 64, 2, False), (3, 64, 1, False), (3, 128, 2, False)),
    *((3, 128, 1, False), (3, 256, 2, False), *[(5, 256, 1, False)] * 5),
    *((5, 512, 2, True), (5, 512, 1, True)),
)
"""Kernel, channels, stride, and whether channels are squeezed and excited."""


def hard_sigmoid(x: nn.Tensor) -> nn.Tensor:
    return op.relu6(x + 3.0) / 6.0


def hard_swish(x: nn.Tensor) -> nn.Tensor:
    return x * hard_sigmoid(x)


def mean(x: nn.Tensor) -> nn.Tensor:
    return wrap_nested(relax.op.mean(x._expr, axis=[2, 3], keepdims=True), "mean")


class Block(nn.Module):
    def __init__(self, before: int, kernel: int, channels: int, stride: int, squeezes: bool):
        self.depthwise = ConvNorm(before, before, kernel, stride, before)
        self.pointwise = ConvNorm(before, channels, 1)
        self.reduce = nn.Conv2D(before, before // 4, 1) if squeezes else None
        self.expand = nn.Conv2D(before // 4, before, 1) if squeezes else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = hard_swish(self.depthwise(x))
        if self.reduce is not None:
            x = x * hard_sigmoid(self.expand(op.relu(self.reduce(mean(x)))))
        return hard_swish(self.pointwise(x))


class LCNet(nn.Module):
    def __init__(self) -> None:
        self.stem = ConvNorm(3, 16, 3, 2)
        blocks, before = [], 16
        for kernel, channels, stride, squeezes in BLOCKS:
            blocks.append(Block(before, kernel, channels, stride, squeezes))
            before = channels
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Conv2D(before, 1280, 1, bias=False)
        self.classes = nn.Conv2D(1280, 1000, 1)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        x = hard_swish(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return self.classes(hard_swish(self.last(mean(x))))


def build() -> tvm.IRModule:
    return Model("", LCNet, (), (1, 3, 224, 224)).build()
