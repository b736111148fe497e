# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the rule of docs/design.md."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each room, and what of ours it may import. The longest prefix that fits is a module's room.
MAY_IMPORT = {
    "target_hw": ("target_hw",),
    "passes.planning": ("target_hw", "passes.planning"),
    "passes.ir": ("target_hw", "passes.planning", "passes.ir"),
    "passes.analysis": ("target_hw", "passes.planning", "passes.ir", "passes.analysis"),
    "passes.simulation": (
        "target_hw",
        "passes.planning",
        "passes.ir.program",
        "passes.simulation",
    ),
    "passes.rewrite": ("target_hw", "passes"),
    "passes": ("target_hw", "passes"),
    "tvm_ext": ("target_hw", "passes", "tvm_ext"),
}
KNOW_NO_TVM = (
    "passes.planning",
    "passes.simulation",
    "passes.ir.program",
    "target_hw.storage_scope",
    "target_hw.memory",
    "target_hw.machine",
)
# TVM compiles the hot loops; `compiled` imports what makes TIR of them when it is first needed.
KNOW_TVM = ("passes.planning.engine.loop_to_tir",)
OURS = ("target_hw", "passes", "tvm_ext")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def modules() -> list[str]:
    paths = (path for package in OURS for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def imported(module: str) -> list[str]:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    package = module.split(".")[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            found.append(".".join([*base, *([node.module] if node.module else [])]))
    return found


@pytest.mark.parametrize("module", modules())
def test_module_imports_only_what_its_room_may(module: str):
    room = max((room for room in MAY_IMPORT if is_within(module, room)), key=len)
    for name in imported(module):
        if name.split(".")[0] in OURS:
            allowed = any(is_within(name, package) for package in MAY_IMPORT[room])
            assert allowed, f"{module} is in {room} and imports {name}"
        if module not in KNOW_TVM and any(is_within(module, package) for package in KNOW_NO_TVM):
            assert name.split(".")[0] not in ("tvm", "tvm_ffi"), f"{module} imports {name}"


PASSES = tuple(
    f"passes.{path.stem}"
    for path in sorted((ROOT / "passes").glob("*.py"))
    if path.stem not in ("__init__", "options", "placement")
)
"""Modules of passes, and of what is told of them: each is an end of the road."""
PARTS = ("passes.ascend_choices", "passes.ascend_kernel")
"""Of these, what is a part of one: the plan of an Ascend kernel, and what it may give up."""


@pytest.mark.parametrize("module", PASSES)
def test_no_pass_imports_another_pass(module: str):
    others = {name for name in PASSES if name not in (module, *PARTS)}
    assert not others & set(imported(module))


def test_rewriting_imports_only_results_of_the_analysis():
    # A walk is something to call; what it found is plain data, and constants are too.
    for module in modules():
        if is_within(module, "passes.rewrite"):
            for name, value in imported_values(module, "passes.analysis"):
                is_fact = isinstance(value, type) and is_frozen(value)
                assert is_fact or not callable(value), f"{module} imports {name}"


def imported_values(module: str, package: str) -> Iterator[tuple[str, object]]:
    """Yield what a module imports by name from a package of ours."""
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_within(node.module or "", package):
            source = importlib.import_module(node.module)
            for alias in node.names:
                yield f"{node.module}.{alias.name}", getattr(source, alias.name)


def is_frozen(value: type) -> bool:
    if issubclass(value, tuple):
        return True
    return dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen
