"""Who may import whom: the rule of docs/design.md."""

from __future__ import annotations

import ast
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
# The hot loops' twins are written in TVMScript; `compiled` imports them when it first needs them.
KNOW_TVM = ("passes.planning.engine.canonical_kernel",)
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


def test_rewriting_imports_only_results_of_the_analysis():
    # The finder walks and the checker walks; a rewrite may read what they found, not call them.
    for module in modules():
        if is_within(module, "passes.rewrite"):
            text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
            assert "LinearAccessPatternFinder(" not in text
            assert "VectorTypeAccessChecker(" not in text
