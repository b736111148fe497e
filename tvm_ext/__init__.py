# SPDX-License-Identifier: Apache-2.0
"""Memory planning passes for TVM.

Importing this package makes its pipelines and chips known to TVM by name, such as ``tvm_ext`` and
``ascend/910b``. The command ``python -m tvm_ext`` imports TVM only where it needs it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_ext.own_packages import check_own_packages

__version__ = "0.2.0"


def _is_command() -> bool:
    """Return whether this process is the command: ``tvm-ext``, or ``python -m tvm_ext``.

    While Python locates the module that ``-m`` names, ``sys.argv[0]`` is ``-m``, and that name
    stands before the other arguments in what Python itself was given.
    """
    argv = getattr(sys, "argv", None) or [""]
    if argv[0] == "-m":
        return sys.orig_argv[-len(argv) :][:1] in (["tvm_ext"], ["-mtvm_ext"])
    return Path(argv[0]).name in ("tvm-ext", "tvm-ext.exe")


if TYPE_CHECKING or not _is_command():
    check_own_packages()
    from tvm_ext.public import *  # noqa: F403
    from tvm_ext.public import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        if not name.startswith("_"):
            if find_spec(f"{__name__}.{name}") is not None:
                return import_module(f"{__name__}.{name}")
            public = import_module(f"{__name__}.public")
            if name in public.__all__:
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
