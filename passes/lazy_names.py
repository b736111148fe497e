# SPDX-License-Identifier: Apache-2.0
"""Names that a package offers, whose modules are imported when a name is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which finds each name in the module that defines it.

    A feature's planners know no TVM, and importing one runs the `__init__` of the feature, which
    must not import TVM either.

    Parameters
    ----------
    package
        The package's ``__name__``.
    modules
        The names that each module gives, with spaces between, by the module's name in the package.
    """
    homes = {
        name: f"{package}.{module}" for module, names in modules.items() for name in names.split()
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
