# SPDX-License-Identifier: Apache-2.0
"""Machines: what is refused, what survives a target, and the figures of the known chips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm.target import Target

import target_hw.target  # noqa: F401  registers the chips
from target_hw import (
    Machine,
    MemoryHierarchy,
    MemoryScope,
    Pipe,
    ascend,
    microcontroller,
    register_chip,
    sophgo,
    with_machine,
)

MINE = Machine(
    (
        Pipe("MTE2", "bytes", 32, 5, to_scope=(("local.L1", 16),), basis="a guess"),
        Pipe("M", "multiply-adds", 4096, at_bits=(("8", 8192), ("16", 4096))),
    ),
    (("cube", ("local.L1",)), ("vector", ("local.UB",))),
)
MEMORY = MemoryHierarchy((MemoryScope("local.UB", 1024),))


@pytest.mark.parametrize("vendor", [ascend, sophgo, microcontroller])
def test_every_chip_has_a_machine_and_its_targets_carry_it(vendor):
    assert set(vendor.MACHINES) == set(vendor.CHIPS)
    for name, machine in vendor.MACHINES.items():
        for tag in (name, f"{name}-llvm"):
            assert Machine.from_target(Target(tag)) == machine
        for pipe in machine:
            assert "estimate" in pipe.basis or ("published" in pipe.basis and vendor is ascend)


def test_lanes_of_a_sophgo_chip_compute_what_its_tables_say():
    # 64 lanes of 16 units: one multiply-add of 32 bits each, and sixteen of 8 bits.
    lanes = sophgo.MACHINES["sophgo/bm1684x"]["TIU"]
    assert [lanes.cycles(1 << 20, bits) - lanes.startup for bits in (8, 16, 32)] == [64, 128, 1024]


def test_figures_are_those_of_the_sources():
    # Written out from the perf samples of asc-devkit (bytes and multiply-adds a cycle, cycles).
    chip, newer = (ascend.MACHINES[f"ascend/{name}"] for name in ("910b", "950"))
    assert chip["MTE1"].cycles(128 * 128 * 2, 16, ("local.L0A",)) == 28 + 128
    assert chip["MTE1"].cycles(128 * 128 * 2, 16, ("local.L0B",)) == 28 + 256
    assert chip["M"].cycles(128**3, 8) == 256
    assert chip["M"].cycles(128**3, 16) == 512
    assert chip["M"].cycles(128**3, 32) == 2048
    assert chip["FIX"].cycles(128 * 128 * 2, 16, ("local.L1",)) == 20 + 256
    assert newer["MTE1"].cycles(128 * 128 * 2, 16, ("local.L0B",)) == 30 + 128
    assert newer["M"].cycles(128**3, 32) == 8192
    # A vector step is 256 bytes.
    assert chip["V"].cycles(256, 8) == chip["V"].cycles(128, 16) == chip["V"].cycles(64, 32)


def test_cores_own_scopes():
    assert MINE.core_of(("global", "local.UB")) == "vector"
    assert MINE.core_of(("global",)) is None
    assert replace(MINE, cores=()).core_of(("local.UB",)) is None


def test_a_pipe_can_be_replaced_and_added():
    faster = replace(MINE["M"], rate=1)
    assert MINE.with_pipe(faster)["M"].rate == 1
    assert [pipe.name for pipe in MINE.with_pipe(Pipe("S", "elements", 1))] == ["MTE2", "M", "S"]


def test_a_machine_survives_a_target_and_its_export():
    for target in (with_machine("llvm", MINE), with_machine("ascend/910b", MINE)):
        assert Machine.from_target(target) == MINE
        assert Machine.from_target(Target(target.export())) == MINE
    chip, twin = register_chip("test_machine/chip", MEMORY, machine=MINE)
    assert Machine.from_target(chip) == Machine.from_target(twin) == MINE


def test_what_carries_no_machine_is_refused():
    with pytest.raises(ValueError, match=r"llvm.*feature\.machine"):
        Machine.from_target(Target("llvm"))
    with pytest.raises(TypeError, match=r"machine: needs a tvm\.target\.Target, got 'llvm'"):
        Machine.from_target("llvm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("V", "byte", 1), "pipe 'V': unit must be one of bytes, elements, multiply-adds"),
        (("V", "bytes", 0), "pipe 'V': rate must be an integer of at least 1, got 0"),
        (("V", "bytes", 1.5), "pipe 'V': rate must be an integer of at least 1, got 1.5"),
        (("V", "bytes", 1 << 62), r"pipe 'V': rate must be below 2\*\*62"),
        (("V", "bytes", 1, -1), "pipe 'V': startup must be an integer of at least 0, got -1"),
        (("V", "bytes", 1, 0, (("x", 0),)), "pipe 'V': to_scope of 'x' must be an integer"),
        (("V", "bytes", 1, 0, 5), "pipe 'V': to_scope must map names to integers, got 5"),
        (("V", "bytes", 1, 0, ("x",)), "pipe 'V': to_scope must map names to integers, got 'x'"),
        (("V", "bytes", 1, 0, (("x", 1),) * 2), "pipe 'V': to_scope has 'x' twice"),
        (("V", "bytes", 1, 0, (), (("b", 1),)), "pipe 'V': at_bits must be widths in bits"),
    ],
)
def test_an_impossible_pipe_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pipe(*arguments)


def test_an_impossible_machine_is_refused():
    pipe = Pipe("V", "bytes", 1)
    with pytest.raises(ValueError, match="machine: needs Pipes, got 3"):
        Machine((pipe, 3))
    with pytest.raises(ValueError, match="machine: pipe 'V' is given twice"):
        Machine((pipe, pipe))
    with pytest.raises(ValueError, match=r"machine: core's scope 'local\.UB' is given twice"):
        Machine((pipe,), (("a", ("local.UB",)), ("b", ("local.UB",))))
    with pytest.raises(ValueError, match="machine: no pipe 'M'; it has: V"):
        Machine((pipe,))["M"]


def test_rates_may_be_a_map_and_a_machine_that_has_run_is_described_as_before():
    pipe = Pipe("V", "bytes", 1, at_bits={"32": 1, "8": 2})
    assert pipe == Pipe("V", "bytes", 1, at_bits=(("8", 2), ("32", 1)))
    assert [pipe.cycles(16, bits) for bits in (8, 16, 64)] == [8, 16, 16]
    machine = Machine((pipe,))
    assert Machine.from_feature(machine.to_feature()) == machine


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (3, "machine: must be a map, got 3"),
        ({"pipe": {}}, "machine: no field 'pipe'; there are: pipes, cores"),
        ({"pipes": {"V": 3}}, "pipe 'V': must be a map, got 3"),
        ({"pipes": {"V": {"rate": 3}}}, "pipe 'V': unit is missing"),
        ({"pipes": {"V": {"unit": "bytes", "speed": 3}}}, "pipe 'V': no field 'speed'"),
        ({"pipes": {"V": {"unit": "bytes", "rate": 0}}}, "pipe 'V': rate must be an integer"),
    ],
)
def test_a_malformed_feature_is_refused_by_name(feature, message):
    with pytest.raises(ValueError, match=message):
        Machine.from_feature(feature)


def test_a_targets_malformed_feature_names_the_target():
    target = Target({"kind": "llvm", "model": "test/chip", "feature.machine": {"pipes": {"V": {}}}})
    with pytest.raises(ValueError, match=r"'test/chip' .*: pipe 'V': unit is missing"):
        Machine.from_target(target)
