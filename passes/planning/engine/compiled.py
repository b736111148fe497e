"""The hot loops that TVM compiles, and the folder in which the compiled ones are kept.

A loop is a function in TVMScript, in a module whose import takes TVM and seconds. So what was
compiled is kept as a shared library in a cache folder, and loading that takes only `tvm_ffi`. The
library's name holds a hash of the version of TVM, the kind of processor and the source of all
modules here, so that a changed loop is compiled anew. A library is written under a name of its own
and then renamed: processes that compile the same loop at once do not meet.

The environment variable `TVM_EXT_CACHE` names the folder; ``off`` keeps nothing. Without it the
folder is ``tvm_ext`` in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import platform
import uuid
from collections.abc import Callable, Iterator, Sequence
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
        return (Path(base) if base else Path.home() / ".cache") / "tvm_ext"
    return None


def _library(module: str) -> Path | None:
    """Return where the compiled loops of a module are or would be kept; None for nowhere."""
    folder, versions = cache_folder(), list(_versions())
    if folder is None or not versions:
        return None
    content = hashlib.sha256()
    for text in (*versions, platform.system(), platform.machine()):
        content.update(text.encode() + b"\n")
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        content.update(source.read_bytes())
    return folder / f"{module.split('.')[-2]}-{content.hexdigest()[:32]}{_SUFFIX}"


def _versions() -> Iterator[str]:
    """Yield the installed TVM by distribution and version, without importing it."""
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _from_cache(name: str) -> Loop | None:
    library = _library(_MODULES[name])
    try:
        if library is None or not library.is_file():
            return None
        found: Loop = importlib.import_module("tvm_ffi").load_module(str(library))[name]
    except (ImportError, OSError, RuntimeError, AttributeError, KeyError, ValueError):
        return None  # not a library that this TVM can load: it is compiled anew
    return found


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
    library = _library(kernels.__name__)
    if library is None:
        return
    own = library.with_name(f"{library.stem}-{os.getpid()}-{uuid.uuid4().hex}{_SUFFIX}")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        built.export_library(str(own))
        own.replace(library)
    except (OSError, RuntimeError):  # a folder that is not ours to write, or no linker
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)
