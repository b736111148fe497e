# SPDX-License-Identifier: Apache-2.0
"""Names that a package offers, whose modules are imported when a name is first asked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def modules_of_names(path: Path) -> dict[str, str]:
    """Return the module of each name that a file imports."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which finds each name in the module that defines it.

    That module is read off the imports that the package's ``__init__`` makes for type checkers
    alone: a feature's planners know no TVM, so its `__init__` must not import it.
    """

    def find(name: str) -> Any:
        homes = modules_of_names(Path(str(sys.modules[package].__file__)))
        # Python asks for dunder names of its own.
        if name.startswith("__") or name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
