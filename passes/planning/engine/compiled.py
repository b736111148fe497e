# SPDX-License-Identifier: Apache-2.0
"""The hot loops that TVM compiles, and the folder in which the compiled ones are kept.

A loop is a Python function that `passes.ir.loop_to_tir` can translate, on a state: a `NamedTuple`
of integers and sequences of integers, of which the loop changes the sequences. It runs as it stands
on lists, or compiled on arrays.

To compile takes TVM, whose import takes seconds. So a compiled loop is kept as a shared library,
and loading that takes only `tvm_ffi`. The library's name holds a hash of the version of TVM, the
kind of processor and the source of `passes.planning` and the translator, so that a changed loop is
compiled anew; and a hash of its own bytes, without which it is not loaded: to load half a library
ends the process. It is written under a name of its own and then renamed, so that processes that
compile the same loop at once do not meet. To load a library is to run it: so it is taken only from
a folder, and as a file, that belong to the user and that nobody else may write.

The environment variable `TVM_EXT_CACHE` names the folder; ``off`` keeps nothing. Without it the
folder is ``tvm_ext`` in ``$XDG_CACHE_HOME`` if that is absolute, as the XDG Base Directory
Specification says, else in ``~/.cache``.
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

CACHE_VARIABLE = "TVM_EXT_CACHE"
OFF = "off"
ALIGNMENT = 64  # Bytes that compiled code takes the begin of every array to be a multiple of

_DISTRIBUTIONS = ("apache-tvm", "tvm", "apache-tvm-ffi")
_SUFFIX = ".so"
_TRANSLATOR = "passes.ir.loop_to_tir"  # What knows TVM, imported where a loop is compiled

Array = npt.NDArray[np.int64]
Loop = Callable[..., None]
State = TypeVar("State", bound=tuple[Any, ...])

_log = logging.getLogger("tvm_ext.compiled_loops")
_loaded: dict[str, Loop | None] = {}


@dataclass(frozen=True)
class Running(Generic[State]):
    """A loop with the state that it runs on."""

    state: State  # Its sequences are what the loop changes.
    advance: Callable[..., None]  # Takes what the function takes behind the state.


def is_loaded(function: Callable[..., None]) -> bool:
    """Whether a compiled loop is there without waiting for a compiler."""
    return _loaded.get(_name(function)) is not None


def loop(function: Callable[..., None]) -> Loop | None:
    """Return a function as a compiled loop, from this process, the cache folder or the compiler.

    None where TVM is not installed or cannot compile for this machine.
    """
    name = _name(function)
    if name not in _loaded:
        _loaded[name] = _from_cache(function) or _from_compiler(function)
    return _loaded[name]


@dataclass(frozen=True)
class Room:
    """A sequence of a state that the loop writes before it reads it."""

    size: int


def start(function: Callable[..., None], state: State, is_compiled: bool) -> Running[State]:
    """Return a loop on a state: compiled, on arrays, or as Python, on lists.

    Ask `loop` first whether there is a compiled one. Room is taken as it is used.
    """
    make: Any = type(state)
    fill = _array if is_compiled else _list
    made: State = make(*(each if isinstance(each, int) else fill(each) for each in state))
    if not is_compiled:
        return Running(made, partial(function, made))
    run, ffi = loop(function), importlib.import_module("tvm_ffi")
    assert run is not None, "only asked for where the loop can be compiled"
    # Compiled code takes tensors that share the arrays' memory.
    tensors = (each if isinstance(each, int) else ffi.from_dlpack(each) for each in made)
    return Running(made, partial(run, *tensors))


def _list(values: Any) -> Any:
    if isinstance(values, Room):
        return {}
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _array(values: Any) -> Array:
    """Return a sequence as an array for compiled code; room is not touched.

    One of no elements has no address, so an element that is never read stands for it.
    """
    given = np.asarray([] if isinstance(values, Room) else values, dtype=np.int64)
    count = max(1, values.size if isinstance(values, Room) else len(given))
    raw = np.empty(8 * count + ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    array = raw[begin : begin + 8 * count].view(np.int64)
    array[: len(given)] = given
    return array


def _name(function: Callable[..., None]) -> str:
    return f"{function.__module__}.{function.__name__}"


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


def _stem(function: Callable[..., None]) -> str | None:
    """Return how the name of a loop's library begins; None where no TVM is installed."""
    versions = []
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    if not versions:
        return None
    content = hashlib.sha256()
    for text in (*versions, platform.system(), platform.machine()):
        content.update(text.encode() + b"\n")
    translator = find_spec(_TRANSLATOR)
    own = [] if translator is None else [Path(str(translator.origin))]
    for source in (*sorted(Path(__file__).parents[1].rglob("*.py")), *own):
        content.update(source.read_bytes())
    return f"{_name(function)}-{content.hexdigest()[:32]}"


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


def _from_cache(function: Callable[..., None]) -> Loop | None:
    folder, stem = cache_folder(), _stem(function)
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
            module = importlib.import_module("tvm_ffi").load_module(str(library))
            found: Loop = module[function.__name__]
            return found
    except (ImportError, OSError, RuntimeError, AttributeError, KeyError, ValueError):
        pass  # not a library that this TVM can load: it is compiled anew
    return None


def _from_compiler(function: Callable[..., None]) -> Loop | None:
    """Compile a loop, keep the library, and return the loop."""
    try:
        translator = importlib.import_module(_TRANSLATOR)
    except ImportError:
        return None  # No TVM is there
    built = translator.built_loop(function)
    if built is None:
        return None
    _keep(built, function)
    found: Loop = built[function.__name__]
    return found


def _keep(built: Any, function: Callable[..., None]) -> None:
    """Write a compiled module to the cache folder, where that is possible."""
    folder, stem = cache_folder(), _stem(function)
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
