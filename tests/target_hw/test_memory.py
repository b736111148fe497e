# SPDX-License-Identifier: Apache-2.0
"""Memory descriptions: what is kept, and how each bad one is refused."""

import dataclasses

import pytest

from target_hw.memory import MemoryHierarchy, MemoryScope


def test_a_scope_keeps_what_it_is_given():
    scope = MemoryScope(
        "local.UB", 192 * 1024, alignment=32, bank_count=16, bank_bytes=12288, reserved=((64, 96),)
    )
    assert (scope.capacity, scope.alignment, scope.reserved) == (196608, 32, ((64, 96),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scope.capacity = 1


def test_reserved_ranges_are_kept_sorted():
    assert MemoryScope("local", 64, reserved=((32, 40), (0, 8))).reserved == ((0, 8), (32, 40))


@pytest.mark.parametrize("name", ["global", "shared.dyn", "local.UB", "wmma.matrix_a", "local.a.b"])
def test_scopes_that_tvm_knows(name):
    assert MemoryScope(name).name == name


@pytest.mark.parametrize("name", ["UB", "localUB", "local.", "", "Local", None, 3])
def test_scopes_that_tvm_does_not_know(name):
    with pytest.raises(ValueError, match=r"memory scope.*(knows|must be a string)"):
        MemoryScope(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1, got 0"),
        ({"capacity": -1}, "capacity must be an integer of at least 1, got -1"),
        ({"capacity": 1.5}, "capacity must be an integer of at least 1, got 1.5"),
        ({"capacity": True}, "capacity must be an integer of at least 1, got True"),
        ({"alignment": 0}, "alignment must be an integer of at least 1, got 0"),
        ({"alignment": 24}, "alignment must be a power of two, got 24"),
        ({"capacity": 1 << 80}, "capacity must be below 2\\*\\*62"),
        ({"alignment": 1 << 62}, "alignment must be below 2\\*\\*62"),
        ({"base": 1 << 62}, "base must be below 2\\*\\*62"),
        ({"reserved": ((0, 1 << 62),)}, "ends 2\\*\\*62 or more"),
        ({"facts": (("x", 1 << 62),)}, "facts of 'x' must be below 2\\*\\*62"),
        ({"capacity": 16, "alignment": 32}, "capacity of 16 bytes is below its alignment"),
        ({"bank_count": 0}, "bank_count must be an integer of at least 1, got 0"),
        ({"bank_count": 2}, "2 banks need bank_bytes"),
        ({"bank_count": 2, "bank_bytes": 8}, "banks need a capacity"),
        ({"capacity": 64, "bank_count": 3, "bank_bytes": 16}, "3 banks of 16 bytes are 48 bytes"),
        (
            {"capacity": 64, "bank_bytes": -16},
            "bank_bytes must be an integer of at least 1, got -16",
        ),
        ({"reserved": ((4, 4),)}, r"reserved range \[4, 4\) is empty or negative"),
        ({"reserved": ((-4, 4),)}, r"reserved range \[-4, 4\) is empty or negative"),
        ({"reserved": ((0, 1, 2),)}, "must be two integers"),
        ({"reserved": ((0, 8), (4, 12))}, r"\[0, 8\) and \[4, 12\) overlap"),
        ({"capacity": 8, "reserved": ((4, 12),)}, "ends above the capacity 8"),
    ],
)
def test_bad_descriptions_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message) as error:
        MemoryScope("local.UB", **fields)
    assert "'local.UB'" in str(error.value)


def test_a_hierarchy_finds_scopes_by_name():
    local = MemoryScope("local.UB", 64)
    hierarchy = MemoryHierarchy((MemoryScope("global"), local))
    assert hierarchy["local.UB"] is local
    assert "local.L1" not in hierarchy
    assert [scope.name for scope in hierarchy] == ["global", "local.UB"]
    with pytest.raises(KeyError, match=r"no scope 'local.L1'; it has: global, local.UB"):
        hierarchy["local.L1"]


def test_a_hierarchy_of_one_scope_without_a_tuple_says_what_to_write():
    with pytest.raises(ValueError, match=r"got one scope; write MemoryHierarchy\(\(scope,\)\)"):
        MemoryHierarchy(MemoryScope("local.UB", 1024))


@pytest.mark.parametrize("scopes", ["x", ("local.UB",), (None,)])
def test_a_hierarchy_refuses_what_is_no_scope(scopes):
    with pytest.raises(ValueError, match="memory hierarchy: needs MemoryScopes, got"):
        MemoryHierarchy(scopes)


def test_a_hierarchy_refuses_two_of_a_name():
    with pytest.raises(ValueError, match=r"'local\.UB' is described twice"):
        MemoryHierarchy((MemoryScope("local.UB", 64), MemoryScope("local.UB", 128)))
