# SPDX-License-Identifier: Apache-2.0
"""Memory maps in files: what a file is follows from the end of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvm_ext.drawing.picture import save
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.snapshot import write_snapshot
from tvm_ext.map.static import picture
from tvm_ext.map.trace import write_trace


def write_map(shown: MemoryMap, path: str | Path) -> None:
    """Write a memory map to a file.

    Parameters
    ----------
    shown : MemoryMap
        What to write.
    path : str or pathlib.Path
        Its suffix names the format: ``.html`` a page for a browser; ``.svg``, ``.png`` or
        ``.pdf`` a picture; ``.pickle`` a snapshot for PyTorch's memory visualiser; ``.json`` a
        trace for Perfetto.

    Raises
    ------
    ValueError
        If the suffix is none of these.
    ImportError
        If a picture is asked for, and there is no matplotlib.
    OSError
        If the file cannot be written.
    """
    _WRITERS[known_suffix(path)](shown, Path(path))


def known_suffix(path: str | Path) -> str:
    """Return the suffix of a file that `write_map` can write; ValueError with those otherwise."""
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"{path}: the name must end in one of {', '.join(_WRITERS)}")
    return suffix


def _picture(shown: MemoryMap, path: Path) -> None:
    save(picture(shown), path)


_WRITERS: dict[str, Callable[[MemoryMap, Path], object]] = {
    ".html": lambda shown, path: path.write_text(shown.page(), encoding="utf-8"),
    ".svg": _picture,
    ".png": _picture,
    ".pdf": _picture,
    ".pickle": lambda shown, path: path.write_bytes(write_snapshot(shown)),
    ".json": lambda shown, path: path.write_text(write_trace(shown), encoding="utf-8"),
}
