"""The hot loops that TVM compiles, and the folder in which the compiled ones are kept.

A loop is a function in TVMScript, in a module whose import takes TVM and seconds. So what was
compiled is kept as a shared library in a cache folder, and loading that takes only `tvm_ffi`. The
library's name holds a hash of the version of TVM, the kind of processor and the source of all
modules here, so that a changed loop is compiled anew; and a hash of its own bytes, without which it
is not loaded: to load half a library ends the process. A library is written under a name of its own
and then renamed: processes that compile the same loop at once do not meet.

To load a library is to run it. So it is taken only from a folder, and as a file, that belong to the
user and that nobody else may write; from another folder nothing is loaded, and none is written.

The environment variable `TVM_EXT_CACHE` names the folder; ``off`` keeps nothing. Without it the
folder is ``tvm_ext`` in the user's cache folder (``$XDG_CACHE_HOME`` if that is absolute, as the XDG
Base Directory Specification says, or ``~/.cache``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import platform
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

CACHE_VARIABLE = "TVM_EXT_CACHE"
OFF = "off"
ALIGNMENT = 64
"""Bytes that compiled code takes the begin of every array to be a multiple of."""

_MODULES = {
    "advance": "passes.planning.engine.canonical.kernel",
    "relocate": "passes.planning.engine.relocate.kernel",
    "rise": "passes.planning.engine.skyline.kernel",
    "scan": "passes.planning.engine.fit.kernel",
}
"""The module that holds each loop in TVMScript."""
_DISTRIBUTIONS = ("apache-tvm", "tvm", "apache-tvm-ffi")
_SUFFIX = ".so"

Array = npt.NDArray[np.int64]
Loop = Callable[..., None]

_log = logging.getLogger("tvm_ext.compiled_loops")
_loaded: dict[str, Loop | None] = {}


def is_loaded(name: str) -> bool:
    """Whether the loop called `name` is there without waiting for a compiler."""
    return _loaded.get(name) is not None


def loop(name: str) -> Loop | None:
    """Return the compiled loop called `name`, from this process, the cache folder or the compiler.

    None where TVM is not installed or cannot compile for this machine.
    """
    if name not in _loaded:
        _loaded[name] = _from_cache(name) or _from_compiler(name)
    return _loaded[name]


def empty(shape: Sequence[int]) -> Array:
    """Return an uninitialised array, aligned for compiled code."""
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.empty(8 * count + ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + 8 * count].view(np.int64).reshape(tuple(shape))


def aligned(values: npt.ArrayLike) -> Array:
    """Return integers as an array for compiled code.

    One of no elements has no address, so an element that is never read stands for it.
    """
    given = np.asarray(values, dtype=np.int64)
    if given.size == 0:
        given = np.zeros((1, *given.shape[1:]), dtype=np.int64)
    array = empty(given.shape)
    array[...] = given
    return array


def columns(*lists: npt.ArrayLike) -> Array:
    """Return lists of equal length as the columns of one array for compiled code."""
    return aligned(np.stack([aligned(each) for each in lists], axis=1))


def tensors(arrays: Sequence[Array]) -> list[Any]:
    """Return the arrays as what compiled code takes; they share their memory."""
    ffi = importlib.import_module("tvm_ffi")
    return [ffi.from_dlpack(array) for array in arrays]


def cache_folder() -> Path | None:
    """Return the folder in which compiled loops are kept; None if they are not."""
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen.lower() == OFF:
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home folder is known
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tvm_ext"
    return None


def _stem(module: str) -> str | None:
    """Return how the name of a module's library begins; None where no TVM is installed."""
    versions = list(_versions())
    if not versions:
        return None
    content = hashlib.sha256()
    for text in (*versions, platform.system(), platform.machine()):
        content.update(text.encode() + b"\n")
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        content.update(source.read_bytes())
    return f"{module.split('.')[-2]}-{content.hexdigest()[:32]}"


def _named(stem: str, library: Path) -> str:
    """Return the name that a library with these bytes has."""
    content = library.read_bytes()
    return f"{stem}-{len(content)}-{hashlib.sha256(content).hexdigest()[:32]}{_SUFFIX}"


def _is_ours_alone(path: Path) -> bool:
    """Whether a folder or a file is the user's, and nobody else may write it."""
    if not hasattr(os, "getuid"):  # Windows keeps the user's own folder to him
        return True
    found = path.stat() if path.is_dir() else path.lstat()
    if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    _warn_of(path)
    return False


@cache
def _warn_of(path: Path) -> None:
    _log.warning("compiled loops: %s is passed over, as others than you may write it", path)


def _versions() -> Iterator[str]:
    """Yield the installed TVM by distribution and version, without importing it."""
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _from_cache(name: str) -> Loop | None:
    folder, stem = cache_folder(), _stem(_MODULES[name])
    if folder is None or stem is None:
        return None
    try:
        if not folder.is_dir() or not _is_ours_alone(folder):
            return None
        for library in sorted(folder.glob(f"{stem}-*{_SUFFIX}")):
            if not library.is_file() or not _is_ours_alone(library):
                continue
            if library.name != _named(stem, library):
                library.unlink()  # cut short or changed: it is compiled anew
                continue
            found: Loop = importlib.import_module("tvm_ffi").load_module(str(library))[name]
            return found
    except (ImportError, OSError, RuntimeError, AttributeError, KeyError, ValueError):
        pass  # not a library that this TVM can load: it is compiled anew
    return None


def _from_compiler(name: str) -> Loop | None:
    """Compile the module that holds a loop, keep the library, and return the loop."""
    try:
        tvm: Any = importlib.import_module("tvm")
        if not tvm.runtime.enabled("llvm"):
            return None
        kernels = importlib.import_module(_MODULES[name])
    except ImportError:
        return None
    functions = {
        each: getattr(kernels, each) for each, at in _MODULES.items() if at == _MODULES[name]
    }
    # The first plan may be made in the middle of a build with a configuration of its own.
    with tvm.transform.PassContext():
        built = tvm.tirx.build(tvm.IRModule(functions), target="llvm")
    _keep(built, kernels)
    found: Loop = built[name]
    return found


def _keep(built: Any, kernels: ModuleType) -> None:
    """Write a compiled module to the cache folder, where that is possible."""
    folder, stem = cache_folder(), _stem(kernels.__name__)
    if folder is None or stem is None:
        return
    own = folder / f".{stem}-{os.getpid()}-{uuid.uuid4().hex}{_SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours_alone(folder):
            return
        built.export_library(str(own))
        own.chmod(0o700)
        own.replace(folder / _named(stem, own))
    except (OSError, RuntimeError):  # a folder that is not ours to write, or no linker
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)
