# SPDX-License-Identifier: Apache-2.0
"""Chips as targets: the tables, the way through TVM, the twins, and chips that users add."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_json import saved_json
from tvm.target import Target, list_tags, register_tag

from target_hw import (
    MemoryHierarchy,
    MemoryScope,
    ascend,
    microcontroller,
    register_chip,
    sophgo,
    with_machine,
    with_memory,
)
from target_hw.target import TWIN_SUFFIX

KIB = 1024
CHIPS = {**ascend.CHIPS, **sophgo.CHIPS, **microcontroller.CHIPS}
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "targets.md"


def _size(count):
    if count is None:
        return "-"
    for unit, name in ((KIB**2, "MiB"), (KIB, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return str(count)


def _address(value):
    return "-" if value is None else f"{value:#x}"


def _table_rows():
    """The rows of `docs/targets.md`, from the targets; the page was written from the sources."""
    for chip in ascend.CHIPS:
        memory = MemoryHierarchy.from_target(Target(chip))
        cells = [f"{_size(scope.capacity)} / {scope.alignment}" for scope in memory]
        yield f"| `{chip}` | " + " | ".join(cells) + " |"
    for chip in sophgo.CHIPS:
        memory = MemoryHierarchy.from_target(Target(chip))
        local, outer = memory["local.LMEM"], memory["global"]
        facts = dict(outer.facts)
        cells = [
            str(local.fact("lanes")),
            f"{_size(local.capacity)} / {local.alignment}",
            _size(memory["global.L2"].capacity) if "global.L2" in memory else "-",
            str(outer.alignment),
            _address(outer.base),
            _address(facts["weight_base"]),
            _address(facts.get("activation_base")),
        ]
        yield f"| `{chip}` | " + " | ".join(cells) + " |"


def test_the_documentation_shows_the_chips_as_they_are():
    rows = list(_table_rows())
    print("\n".join(rows))
    lines = DOCUMENTATION.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.match(r"\| `(ascend|sophgo)/", line)] == rows


def test_the_documentation_runs():
    code = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for block in code:
        exec(block, names)
    assert str(names["chip"]) == str(Target("vendor/chip"))
    assert MemoryHierarchy.from_target(names["target"])["local.UB"].capacity == 96 * KIB


@st.composite
def memory_scopes(draw, name):
    alignment = 2 ** draw(st.integers(0, 12))
    capacity = draw(st.integers(1, 2**40)) * alignment
    cuts = sorted(draw(st.sets(st.integers(0, capacity), max_size=6)))
    fact_names = st.sampled_from(["lanes", "eu_bytes", "weight_base", 'a "b"', "größe"])
    facts = st.dictionaries(fact_names, st.integers(-(2**62) + 1, 2**62 - 1), max_size=3)
    common = {
        "alignment": alignment,
        "reserved": tuple(zip(cuts[::2], cuts[1::2], strict=False)),
        "base": draw(st.integers(0, 2**40)) * alignment,
        "facts": tuple(draw(facts).items()),
    }
    return MemoryScope(name, draw(st.sampled_from((None, capacity))), **common)


@st.composite
def hierarchies(draw):
    known = ["global", "global.L2", "shared.dyn", "wmma.matrix_a", "local", "local.UB", "local.a.b"]
    names = st.sampled_from(known)
    chosen = draw(st.lists(names, unique=True, max_size=6))
    return MemoryHierarchy(tuple(draw(memory_scopes(name)) for name in chosen))


def _roads(target):
    """The ways in which a target is stored and read back."""
    yield target
    yield Target(target.export())
    yield Target(str(target))
    yield Target(json.loads(str(target)))
    yield tvm.ir.load_json(saved_json(target))
    yield Target(Target(target, host="llvm").export())


@given(memory=hierarchies(), kind=st.sampled_from(["ext_dev", "llvm", "c"]))
@settings(max_examples=25, deadline=None)
def test_a_description_survives_export_and_json(memory, kind):
    for target in _roads(with_memory(kind, memory)):
        assert MemoryHierarchy.from_target(target) == memory


@pytest.mark.parametrize("chip", CHIPS)
def test_a_chip_and_its_twin_survive_export_and_json(chip):
    for tag, kind, keys in (
        (chip, "ext_dev", ["npu", chip.split("/")[0]]),
        (chip + TWIN_SUFFIX, "llvm", ["npu", chip.split("/")[0], "cpu"]),
    ):
        for target in _roads(Target(tag)):
            assert (target.kind.name, list(target.keys)) == (kind, keys)
            assert MemoryHierarchy.from_target(target) == CHIPS[chip]


def test_one_number_is_overridden():
    target = Target("ascend/910b-llvm")
    memory = MemoryHierarchy.from_target(target)
    half = memory.with_scope(replace(memory["local.UB"], capacity=96 * KIB))
    changed = with_memory(target, half)
    for read in _roads(changed):
        assert MemoryHierarchy.from_target(read) == half
        assert (read.kind.name, list(read.keys)) == ("llvm", ["npu", "ascend", "cpu"])
    assert half["local.L1"] == memory["local.L1"]
    assert MemoryHierarchy.from_target(Target("ascend/910b-llvm")) == memory


def test_tvm_overrides_the_whole_description_at_once():
    only = MemoryHierarchy((MemoryScope("local.UB", 64),))
    target = Target({"tag": "ascend/910b", "feature.memory": only.to_feature()})
    assert MemoryHierarchy.from_target(target) == only


def test_a_target_from_with_memory_is_read_where_its_tag_is_unknown():
    tagged = Target({"tag": "ascend/910b", "model": "mine"})
    stored = str(with_memory(tagged, MemoryHierarchy((MemoryScope("local.UB", 64),))))
    assert json.loads(stored)["tag"] == ""
    read = MemoryHierarchy.from_target(Target(stored))
    assert read.to_feature() == {"local.UB": {"capacity": 64}}


def _copy_through(scopes):
    """A function that takes 16 numbers through a buffer in each scope, and adds 1 in each."""
    lines = [
        "@T.prim_func",
        "def main(source: T.Buffer((16,), 'int32'), result: T.Buffer((16,), 'int32')):",
    ]
    last = "source"
    for number, scope in enumerate(scopes):
        lines += [
            f"    buffer_{number} = T.alloc_buffer((16,), 'int32', scope='{scope}')",
            "    for i in range(16):",
            f"        buffer_{number}[i] = {last}[i] + 1",
        ]
        last = f"buffer_{number}"
    lines += ["    for i in range(16):", f"        result[i] = {last}[15 - i]"]
    return tvm.script.from_source("\n".join(lines))


def _assert_twin_runs(tag):
    target = Target(tag)
    scopes = [scope.name for scope in MemoryHierarchy.from_target(target)]
    built = tvm.tirx.build(_copy_through(scopes), target=target)
    source = np.arange(100, 116, dtype="int32")
    result = tvm.runtime.tensor(np.zeros_like(source))
    built["main"](tvm.runtime.tensor(source), result)
    np.testing.assert_array_equal(result.numpy(), source[::-1] + len(scopes))


@pytest.mark.parametrize("chip", CHIPS)
def test_a_twin_runs_a_kernel_with_every_scope(chip):
    _assert_twin_runs(chip + TWIN_SUFFIX)


MINE = MemoryHierarchy((MemoryScope("shared.tile", 4096, alignment=64), MemoryScope("global")))


def test_a_user_adds_a_chip_in_one_call():
    chip, twin = register_chip("test_add/chip", MINE, keys=["npu", "mine"])
    assert (chip.kind.name, list(chip.keys)) == ("ext_dev", ["npu", "mine"])
    assert (twin.kind.name, list(twin.keys)) == ("llvm", ["npu", "mine", "cpu"])
    for tag, target in (("test_add/chip", chip), ("test_add/chip-llvm", twin)):
        assert str(Target(tag)) == str(target)
        assert MemoryHierarchy.from_target(Target(tag)) == MINE
        assert tag in list_tags()
    _assert_twin_runs("test_add/chip-llvm")


def test_a_chip_is_replaced_only_when_asked():
    smaller = MINE.with_scope(MemoryScope("shared.tile", 1024))
    first = register_chip("test_again/chip", MINE)
    assert [str(target) for target in register_chip("test_again/chip", MINE)] == [
        str(target) for target in first
    ]
    with pytest.raises(ValueError, match=r"tag 'test_again/chip' is taken; override=True"):
        register_chip("test_again/chip", smaller)
    assert MemoryHierarchy.from_target(Target("test_again/chip")) == MINE
    register_chip("test_again/chip", smaller, override=True)
    assert MemoryHierarchy.from_target(Target("test_again/chip")) == smaller
    assert MemoryHierarchy.from_target(Target("test_again/chip-llvm")) == smaller


def test_where_the_twin_is_taken_neither_is_registered():
    register_tag("test_taken/chip-llvm", {"kind": "llvm"})
    with pytest.raises(ValueError, match=r"tag 'test_taken/chip-llvm' is taken"):
        register_chip("test_taken/chip", MINE)
    assert "test_taken/chip" not in list_tags()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("test_bad", MINE), {}, ValueError, r"'test_bad': the name must be 'vendor/chip'"),
        (("test_bad/a b", MINE), {}, ValueError, r"'test_bad/a b': the name must be"),
        (("test_bad/chip-llvm", MINE), {}, ValueError, r"must not end with '-llvm'"),
        (("test_bad/chip", MINE), {"kind": "npu"}, ValueError, r"no target kind 'npu'"),
        (("test_bad/chip", MemoryHierarchy()), {}, ValueError, r"no memory is described"),
        (("test_bad/chip", MINE.to_feature()), {}, TypeError, r"needs a MemoryHierarchy, got {"),
        (("test_bad/chip", MINE), {"machine": 5}, TypeError, r"needs a Machine, got 5"),
        (("test_bad/chip", MINE), {"keys": "npu"}, ValueError, r"keys must be a list .* got 'npu'"),
        (("test_bad/chip", MINE), {"keys": ("npu", 3)}, ValueError, r"keys must be a list"),
        ((7, MINE), {}, ValueError, r"chip 7: the name must be 'vendor/chip'"),
    ],
)
def test_bad_chips_are_refused_by_name(arguments, options, error, message):
    with pytest.raises(error, match=message) as refused:
        register_chip(*arguments, **options)
    assert str(refused.value).startswith(f"chip {arguments[0]!r}: ")
    assert not [tag for tag in list_tags() if tag.startswith("test_bad")]


def test_a_target_without_memories_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r'target {"kind":"c",.*"keys":\["cpu"\]}: carries no memory description'
    ):
        MemoryHierarchy.from_target(Target("c"))


def test_a_target_with_a_malformed_description_is_refused_by_name():
    feature = {"local.UB": {"reserved": [[0, "a"]]}}
    target = Target({"kind": "llvm", "model": "test/chip", "feature.memory": feature})
    message = r"^target 'test/chip' \(llvm\): .*'local.UB': reserved range must be two integers"
    with pytest.raises(ValueError, match=message):
        MemoryHierarchy.from_target(target)


def test_only_descriptions_are_added_to_a_target():
    with pytest.raises(TypeError, match=r"with_memory: needs a MemoryHierarchy, got \{\}"):
        with_memory("llvm", {})
    with pytest.raises(TypeError, match="with_machine: needs a Machine, got None"):
        with_machine("ascend/910b", None)
