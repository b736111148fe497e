# SPDX-License-Identifier: Apache-2.0
"""Memory descriptions: what is kept and written, and how each bad one is refused."""

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from target_hw.memory import MemoryHierarchy, MemoryScope

FULL = MemoryScope(
    "local.UB",
    65536,
    alignment=32,
    reserved=((128, 256), (0, 64)),
    base=1 << 40,
    facts=(("lanes", 8), ("eu_bytes", 16)),
)
FULL_FEATURE = {
    "capacity": 65536,
    "alignment": 32,
    "reserved": [[0, 64], [128, 256]],
    "base": 1 << 40,
    "facts": {"eu_bytes": 16, "lanes": 8},
}


def test_a_scope_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.capacity = 1


@pytest.mark.parametrize("name", ["UB", "localUB", "local.", "", "Local", None, 3])
def test_scopes_that_tvm_does_not_know(name):
    with pytest.raises(ValueError, match=r"memory scope.*(knows|must be a string)"):
        MemoryScope(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1, got 0"),
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
        ({"reserved": ((4, 4),)}, r"reserved range \[4, 4\) is empty or negative"),
        ({"reserved": ((-4, 4),)}, r"reserved range \[-4, 4\) is empty or negative"),
        ({"reserved": ((0, 1, 2),)}, "must be two integers"),
        ({"reserved": ((0, 8), (4, 12))}, r"\[0, 8\) and \[4, 12\) overlap"),
        ({"capacity": 8, "reserved": ((4, 12),)}, "ends above the capacity 8"),
        ({"base": -1}, "base must be an integer of at least 0, got -1"),
        ({"base": 2.0}, "base must be an integer of at least 0, got 2.0"),
        ({"base": 48, "alignment": 32}, "base 48 is not a multiple of its alignment of 32"),
        ({"facts": (("lanes", 1.5),)}, "facts of 'lanes' must be an integer, got 1.5"),
        ({"facts": (("lanes", True),)}, "facts of 'lanes' must be an integer, got True"),
        ({"facts": (("lanes", 1), ("lanes", 2))}, "facts has 'lanes' twice"),
        ({"facts": ((1, 2, 3),)}, r"facts must map names to integers, got \(1, 2, 3\)"),
        ({"facts": "lanes"}, "facts must map names to integers, got 'lanes'"),
        ({"reserved": 4}, r"reserved ranges must be a list of \(begin, end\), got 4"),
        ({"reserved": (4, 8)}, r"reserved range must be two integers \(begin, end\), got 4"),
        ({"reserved": ("ab",)}, r"reserved range must be two integers \(begin, end\), got 'ab'"),
        ({"reserved": ((0, 1.0),)}, "reserved range must be two integers"),
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


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        (FULL, r"got one scope; write MemoryHierarchy\(\(scope,\)\)"),
        *((scopes, "needs MemoryScopes, got") for scopes in ("x", ("local.UB",), (None,))),
        ((FULL, MemoryScope("local.UB", 128)), r"scope 'local\.UB' is described twice"),
    ],
)
def test_a_hierarchy_refuses_what_is_no_tuple_of_scopes(scopes, message):
    with pytest.raises(ValueError, match=f"memory hierarchy: .*{message}"):
        MemoryHierarchy(scopes)


# ------------------------------------------------------------------------- plain data


def test_a_description_is_plain_data_without_the_defaults():
    hierarchy = MemoryHierarchy((FULL, MemoryScope("global")))
    assert hierarchy.to_feature() == {"local.UB": FULL_FEATURE, "global": {}}
    assert MemoryHierarchy.from_feature(json.loads(json.dumps(hierarchy.to_feature()))) == hierarchy


def test_facts_may_be_a_map_and_are_found_by_name():
    assert MemoryScope("local.UB", facts={"lanes": 8, "eu_bytes": 16}).facts == FULL.facts
    assert FULL.fact("lanes") == 8
    with pytest.raises(ValueError, match=r"'local.UB': no fact 'lane'; it has: eu_bytes, lanes"):
        FULL.fact("lane")
    with pytest.raises(ValueError, match=r"no fact 'lanes'; it has: none"):
        MemoryScope("local").fact("lanes")


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (3, "memory hierarchy: must be a map, got 3"),
        ([["local.UB", {}]], "memory hierarchy: must be a map"),
        ({"local.UB": 3}, "memory scope 'local.UB': must be a map, got 3"),
        ({"UB": {}}, "memory scope 'UB': not a scope that TVM knows"),
        ({"local.UB": {"size": 3}}, "'local.UB': no field 'size'; there are: capacity, alignment"),
        ({"local.UB": {"name": "local"}}, "'local.UB': no field 'name'"),
        (
            {"local.UB": {"alignment": None}},
            "'local.UB': alignment must be an integer of at least 1, got None",
        ),
        ({"local.UB": {"facts": [1]}}, "'local.UB': facts must map names to integers, got 1"),
    ],
)
def test_malformed_features_are_refused_by_name(feature, message):
    with pytest.raises(ValueError, match=message):
        MemoryHierarchy.from_feature(feature)


def test_a_scope_replaces_its_namesake_or_comes_last():
    hierarchy = MemoryHierarchy((FULL, MemoryScope("global")))
    small = dataclasses.replace(FULL, capacity=8192)
    assert hierarchy.with_scope(small).scopes == (small, MemoryScope("global"))
    assert [scope.name for scope in hierarchy.with_scope(MemoryScope("local.L1"))] == [
        "local.UB",
        "global",
        "local.L1",
    ]
    assert hierarchy["local.UB"] is FULL


def test_anything_with_the_features_of_a_target_will_do():
    features = SimpleNamespace(memory={"local.UB": FULL_FEATURE})
    target = SimpleNamespace(features=features, attrs={}, kind=SimpleNamespace(name="c"))
    assert MemoryHierarchy.from_target(target) == MemoryHierarchy((FULL,))


def test_the_name_of_a_target_is_not_a_target():
    with pytest.raises(TypeError, match=r"needs a tvm.target.Target, got 'ascend/910b'"):
        MemoryHierarchy.from_target("ascend/910b")


def test_descriptions_and_tables_need_no_tvm():
    without_tvm = (
        "import sys; sys.modules['tvm'] = None\n"
        "import target_hw, target_hw.memory, target_hw.ascend, target_hw.sophgo, passes.planning\n"
        "print(target_hw.MemoryHierarchy(target_hw.ascend.CHIPS['ascend/910b'].scopes).to_feature())"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_tvm], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'local.UB': {'capacity': 196608, 'alignment': 32}" in done.stdout
