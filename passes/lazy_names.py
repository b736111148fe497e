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


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which finds each name in the module that defines it.

    That module is read off the imports that the package's ``__init__`` makes for type checkers
    alone. A feature's planners know no TVM, and importing one runs the `__init__` of the feature,
    which must not import TVM either.
    """

    @cache
    def homes() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        # Python asks for dunder names of its own.
        home = None if name.startswith("__") else homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return find
