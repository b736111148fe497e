# SPDX-License-Identifier: Apache-2.0
"""Chips that ask for less alignment than the CPU that runs their twin."""

from __future__ import annotations

import pytest
from operator_modules import arrays, check_against_stock, module
from tvm import relax
from tvm.target import Target

from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip
from tvm_ext.layer_group_report import layer_groups


def chip(lanes, alignment, capacity):
    """Register a chip; return the name of its twin."""
    name = f"test/aligned-{lanes}-{alignment}-{capacity}"
    facts = (("eu_bytes", 4), ("lanes", lanes))
    local = MemoryScope("local.LMEM", capacity, alignment=alignment, facts=facts)
    pipes = (Pipe("GDMA", "bytes", 1, 10), Pipe("TIU", "multiply-adds", 64, 1))
    memory = MemoryHierarchy((local, MemoryScope("global", alignment=64)))
    register_chip(name, memory, machine=Machine(pipes), override=True)
    return f"{name}-llvm"


def wide_beside_narrow(height):
    """Numbers of 32 bits that become numbers of 64 bits, beside others of 32 bits."""

    def pool(emit, x):
        return emit(relax.op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)))

    def body(emit, x, y):
        narrow = pool(emit, pool(emit, x))
        wide = emit(relax.op.astype(pool(emit, narrow), "int64"))
        total = emit(relax.op.add(pool(emit, wide), emit(relax.op.astype(y, "int64"))))
        return [pool(emit, total), narrow]

    return module([(1, 3, height, height)] * 2, body, inputs=2, dtype="int32")


@pytest.mark.parametrize(("lanes", "alignment", "capacity"), [(1, 4, 1000), (5, 1, 400)])
def test_elements_that_are_wider_than_a_chip_aligns(lanes, alignment, capacity):
    target = chip(lanes, alignment, capacity)
    mod = wide_beside_narrow(5)
    report = layer_groups(mod, Target(target))
    assert not [layer for layer in report.left if "written" in layer.reason]
    assert check_against_stock(mod, target, arrays(mod)) > 0
