# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the rule of docs/design.md."""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from tvm import ir, relax, tirx
from tvm.ir import Op

ROOT = Path(__file__).parents[1]

CORE = (
    "target_hw",
    "passes.planning",
    "passes.simulation",
    "passes.ir",
    "passes.prim_func",
    "passes.relax",
)
FEATURES = tuple(
    f"passes.{name}"
    for name in (
        "addresses",
        "ascend",
        "gmem",
        "layer_group",
        "order",
        "shared_memory",
        "storage_rewrite",
    )
)

# The packages that are imported from by name alone: a module of theirs is nobody else's business.
FACES = (
    *FEATURES,
    "passes.ir",
    "passes.planning",
    "passes.prim_func",
    "passes.relax",
    "passes.simulation",
)
# Packages within these that have a face of their own, and modules that are vocabularies.
INNER_FACES = ("passes.planning.engine", "passes.planning.memories")
VOCABULARIES = (
    "passes.ir.tir",
    "passes.relax.rx",
    "passes.ir.operators",
    "passes.ir.relax_operators",
    "passes.ir.statements",
    "passes.ir.storage_entries",
    "passes.planning.files",
)

# Each package, and what of ours it may import. The longest prefix that fits is a module's package.
MAY_IMPORT = {
    "passes": (),
    "target_hw": ("target_hw",),
    "passes.planning": ("target_hw", "passes.planning"),
    "passes.simulation": ("target_hw", "passes.planning", "passes.simulation"),
    "passes.ir": ("target_hw", "passes.ir"),
    "passes.prim_func": CORE[:5],
    "passes.relax": ("target_hw", "passes.planning", "passes.ir", "passes.relax"),
    "passes.pass_options": ("target_hw",),
    "passes.pass_errors": (),
    "passes.driver": (*CORE, "passes.pass_options", "passes.pass_errors", "passes.driver"),
    **{
        feature: (*CORE, "passes.pass_options", "passes.pass_errors", "passes.driver", feature)
        for feature in FEATURES
    },
    **{
        f"{feature}.planning": (*CORE[:3], "passes.ir.storage_entries", f"{feature}.planning")
        for feature in FEATURES
    },
    **{
        f"{feature}.analysis": (*CORE, f"{feature}.analysis", f"{feature}.planning")
        for feature in FEATURES
    },
    "tvm_ext": ("target_hw", "passes", "tvm_ext"),
}
# An order of operators is judged by what `GMEMAllocate` plans of it, which its options decide.
MAY_IMPORT["passes.order"] = (*MAY_IMPORT["passes.order"], "passes.gmem.options")
KNOW_NO_TVM = (
    "passes.planning",
    "passes.simulation",
    "passes.ir.storage_entries",
    *(f"{feature}.planning" for feature in FEATURES),
    "target_hw.storage_scope",
    "target_hw.memory",
    "target_hw.machine",
)
READERS = (
    *(f"{feature}.analysis" for feature in FEATURES),
    "passes.relax",
    "passes.ir.linear_access",
    "passes.ir.statements",
    "passes.ir.access_walk",
    "passes.ir.carried_values",
    "passes.prim_func.problems",
)
WRITERS = (
    "passes.gmem.relax_memory",
    "passes.layer_group.rewrite",
    "passes.prim_func.address",
    "passes.prim_func.arena",
    "passes.storage_rewrite.merge",
    "passes.storage_rewrite.vector_types",
)
OURS = ("target_hw", "passes", "tvm_ext")

# Names without a dot are those of other things, too. The prefixes make names of words.
OPERATORS = {name for name in map(str, Op.list_op_names()) if "." in name}
OPERATORS |= {f"{name.partition('.')[0]}." for name in OPERATORS}


# Importers, which need PyTorch; scripts, in which kernels are written; and Trainium's tiles.
APART = ("tvm.relax.frontend", "tvm.script", "tvm.tirx.operator")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def modules() -> list[str]:
    paths = (path for package in OURS for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


MODULES = tuple(modules())


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a module's syntax tree."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return tuple(ast.walk(ast.parse(path.read_text())))


def imported(module: str) -> list[str]:
    package = module.split(".")[:-1]
    found = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found += [home_of(source, alias.name) for alias in node.names]
    return found


@cache
def homes_in(package: str) -> dict[str, str]:
    """Return the module from which a package's `__init__` takes each name."""
    if f"{package}.__init__" not in MODULES:
        return {}
    return {
        alias.name: node.module
        for node in nodes_of(f"{package}.__init__")
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}.")
        for alias in node.names
    }


def home_of(source: str, name: str) -> str:
    """Return the module that is meant by ``from source import name``, by way of faces."""
    if home := homes_in(source).get(name):
        return home_of(home, name)
    return f"{source}.{name}" if f"{source}.{name}" in MODULES else source


def test_each_module_imports_only_what_its_package_may():
    wrong = []
    for module in MODULES:
        package = max((package for package in MAY_IMPORT if is_within(module, package)), key=len)
        knows_tvm = not any(is_within(module, one) for one in KNOW_NO_TVM)
        for name in imported(module):
            if name == "passes.lazy_names":
                continue
            if name.split(".")[0] in OURS:
                if not any(is_within(name, other) for other in MAY_IMPORT[package]):
                    wrong.append(f"{module} is in {package} and imports {name}")
            elif name.split(".")[0] in ("tvm", "tvm_ffi") and not knows_tvm:
                wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_a_feature_is_imported_from_by_its_face():
    wrong = []
    for module in MODULES:
        for node in nodes_of(module):
            if not isinstance(node, ast.ImportFrom):
                continue
            for face in FACES:
                is_inside = is_within(module, face) or node.module in (
                    None,
                    face,
                    *INNER_FACES,
                    *VOCABULARIES,
                )
                if not is_inside and is_within(node.module, face):
                    wrong.append(f"{module} imports from {node.module}, not from {face}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("face", [*FACES, *INNER_FACES])
def test_a_face_gives_the_names_that_it_imports(face):
    package = importlib.import_module(face)
    for name in homes_in(face):
        assert getattr(package, name) is getattr(importlib.import_module(home_of(face, name)), name)


def test_planners_of_features_import_no_tvm_in_passing():
    planners = [name for name in MODULES if any(is_within(name, one) for one in KNOW_NO_TVM)]
    imports = "".join(f"import {name.removesuffix('.__init__')}\n" for name in planners)
    code = f"import sys\nsys.modules['tvm'] = None\n{imports}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_the_core_names_no_feature():
    """Not as a text either, which could be imported when it is needed."""
    for module in MODULES:
        if any(is_within(module, package) for package in CORE):
            for node in nodes_of(module):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not any(is_within(node.value, one) for one in FEATURES), module


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: {name for name in imported(module) if name in MODULES} for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_two_modules_and_no_two_types_have_one_name():
    stems = [module.split(".")[-1] for module in MODULES]
    types = [n.name for module in MODULES for n in nodes_of(module) if isinstance(n, ast.ClassDef)]
    shared = {name for name, times in Counter([*stems, *types]).items() if times > 1}
    assert shared <= {"__init__", "transform", "planner"}


def test_operators_are_known_by_name_in_one_package():
    wrong = []
    for module in MODULES:
        if is_within(module, "passes.ir"):
            continue
        for node in nodes_of(module):
            if isinstance(node, ast.Constant) and node.value in OPERATORS:
                wrong.append(f"{module} names {node.value}")
            elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith("Op.get"):
                wrong.append(f"{module} looks for an operator")
    assert not wrong, "\n".join(wrong)


def test_nodes_of_tir_and_relax_are_named_in_two_modules():
    """Others name `tir.Store` and `rx.Call`; a version of TVM decides which classes these are."""
    wrong = []
    for module in MODULES:
        if is_within(module, "passes.ir") or is_within(module, "passes.relax"):
            continue
        bound = {}
        for node in nodes_of(module):
            source = str(getattr(node, "module", ""))
            if is_within(source, "tvm") and not any(is_within(source, one) for one in APART):
                home = importlib.import_module(source)
                bound |= {
                    one.asname or one.name: getattr(home, one.name, None) for one in node.names
                }
        wrong += [f"{module} imports {name}" for name, value in bound.items() if is_node(value)]
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner = bound.get(node.value.id)
                if isinstance(owner, ModuleType) and is_node(getattr(owner, node.attr, None)):
                    wrong.append(f"{module} names {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def is_node(value: object) -> bool:
    """Return whether a value is a class of statements, expressions or functions of TVM."""
    kinds = (tirx.Stmt, ir.Expr, ir.BaseFunc, relax.Binding, relax.BindingBlock)
    return isinstance(value, type) and issubclass(value, kinds)


def test_writers_import_only_results_of_the_readers():
    # A walk is something to call; what it found is plain data, and constants are too.
    for module in MODULES:
        if any(is_within(module, writer) for writer in WRITERS):
            for name, home, value in imported_values(module):
                if any(is_within(home, reader) for reader in READERS):
                    is_fact = isinstance(value, type) and is_plain_data(value)
                    assert is_fact or not callable(value), f"{module} imports {name}"


def imported_values(module: str) -> Iterator[tuple[str, str, object]]:
    """Yield what a module imports by name from our packages: name, home and value."""
    for node in nodes_of(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            for alias in node.names:
                home = home_of(node.module, alias.name)
                if home != f"{node.module}.{alias.name}":
                    value = getattr(importlib.import_module(home), alias.name)
                    yield f"{node.module}.{alias.name}", home, value


def is_plain_data(value: type) -> bool:
    return issubclass(value, tuple) or dataclasses.is_dataclass(value)
