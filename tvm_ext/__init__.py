# SPDX-License-Identifier: Apache-2.0
"""Memory planning passes for TVM.

Importing this package makes its pipelines and chips known to TVM by name. All else is imported when
its name is first asked for; the command imports TVM only where it needs it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

_PACKAGES = ("passes", "target_hw")
"""The packages beside this one, which a folder of the user's own may hide."""


def check_own_packages() -> None:
    """Raise ImportError, which names the place, unless our packages are found where `tvm_ext` is.

    A folder or file called ``passes`` or ``target_hw`` in the working directory, or elsewhere early
    on Python's path, is found before ours.
    """
    root = Path(__file__).resolve().parents[1]
    for name in _PACKAGES:
        spec = find_spec(name)
        found = spec.origin if spec is not None else None
        if found is None or Path(found).resolve().parents[1] != root:
            where = found or next(iter((spec and spec.submodule_search_locations) or ()), "nowhere")
            raise ImportError(
                f"tvm_ext needs its own package {name!r}, but Python finds another one first: "
                f"{where}; rename that, or run Python from another folder"
            )


def _is_command() -> bool:
    """Return whether this process is the command: ``tvm-ext``, or ``python -m tvm_ext``.

    While Python locates the module that ``-m`` names, ``sys.argv[0]`` is ``-m``, and that name
    stands before the other arguments in what Python itself was given.
    """
    argv = getattr(sys, "argv", None) or [""]
    if argv[0] == "-m":
        return sys.orig_argv[-len(argv) :][:1] in (["tvm_ext"], ["-mtvm_ext"])
    return Path(argv[0]).name in ("tvm-ext", "tvm-ext.exe")


def _homes() -> dict[str, str]:
    """Return the module of each name that users may import, as the stub beside this file has it."""
    from passes.lazy_names import modules_of_names

    return modules_of_names(Path(__file__).with_suffix(".pyi"))


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    if name == "__all__":
        value: Any = sorted(_homes())
    elif name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


if not _is_command():
    check_own_packages()
    import_module("tvm_ext.known_names")
