# SPDX-License-Identifier: Apache-2.0
"""The packages beside this one, which a folder of the user's own may hide."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_NAMES = ("passes", "target_hw")


def check_own_packages() -> None:
    """Raise ImportError, which names the place, unless our packages are found where `tvm_ext` is.

    A folder or file called ``passes`` or ``target_hw`` in the working directory, or elsewhere early
    on Python's path, is found before ours.
    """
    root = Path(__file__).resolve().parents[1]
    for name in _NAMES:
        spec = find_spec(name)
        found = spec.origin if spec is not None else None
        if found is None or Path(found).resolve().parents[1] != root:
            where = found or next(iter((spec and spec.submodule_search_locations) or ()), "nowhere")
            raise ImportError(
                f"tvm_ext needs its own package {name!r}, but Python finds another one first: "
                f"{where}; rename that, or run Python from another folder"
            )
