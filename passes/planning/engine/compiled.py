# SPDX-License-Identifier: Apache-2.0
"""The hot loops that TVM compiles, and the folder in which the compiled ones are kept.

A loop is a Python function that `passes.ir.loop_to_tir` can translate, on a state: a `NamedTuple`
of integers and sequences of integers; the loop changes only the sequences. It runs as it stands
on lists, or compiled on arrays.

To compile takes TVM, whose import takes seconds. So a compiled loop is kept as a shared library,
and loading that takes only `tvm_ffi`. The library's name holds a hash of the version of TVM, the
kind of processor and the statements of the loop and the translator, so that a changed loop is
compiled anew, but not for a comment; and a hash of its own bytes, without which it is not loaded:
to load half a library ends the process. It is written under a name of its own and then renamed, so
that processes that compile the same loop at once do not meet. To load a library is to run it: so it
is taken only from a folder, and as a file, that belong to the user and that nobody else may write.

Nobody waits for the compiler: a process of its own compiles all loops where the first is missing,
and what asks `is_ready` runs the Python until then.

The environment variable `TVM_EXT_CACHE` names the folder; ``off`` keeps nothing. Without it the
folder is ``tvm_ext`` in ``$XDG_CACHE_HOME`` if that is absolute, as the XDG Base Directory
Specification says, else in ``~/.cache``.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import hashlib
import importlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
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
_TRANSLATOR = "passes.ir.loop_to_tir"  # Knows TVM; imported where a loop is compiled

Array = npt.NDArray[np.int64]
Loop = Callable[..., None]
State = TypeVar("State", bound=tuple[Any, ...])

_log = logging.getLogger("tvm_ext.compiled_loops")
_loaded: dict[str, Loop | None] = {}


@dataclass(frozen=True)
class BoundLoop(Generic[State]):
    """A loop with the state that it runs on."""

    state: State  # Its sequences are what the loop changes.
    advance: Callable[..., None]  # Takes what the function takes after the state.


LOOPS = (
    "passes.planning.planners.allocation_loop",
    "passes.planning.planners.first_fit_loop",
    "passes.planning.planners.canonical_loop",
    "passes.planning.planners.relocation_loop",
    "passes.planning.memories.filling_loop",
)
"""The modules whose `advance` is compiled, those of the largest tables first."""


def is_loaded(function: Callable[..., None]) -> bool:
    """Return whether a compiled loop is in this process already."""
    return _loaded.get(_name(function)) is not None


def is_ready(function: Callable[..., None]) -> bool:
    """Return whether a compiled loop is there; where it is not, all are compiled, and nobody waits.

    A process of its own does that, and is started once.
    """
    name = _name(function)
    if name not in _loaded:
        found = None if _is_compiling() else _from_cache(function)
        if found is not None:
            _loaded[name] = found
        elif not _start_compiler():
            loop(function)  # There is no other process, or it could not keep what it compiled
    return _loaded.get(name) is not None


_compilers: list[subprocess.Popen[bytes]] = []  # The process that was started, if one was
_own_folder: list[Path] = []  # Where it keeps the loops if the cache is off


def _is_compiling() -> bool:
    return any(process.poll() is None for process in _compilers)


def _start_compiler() -> bool:
    """Start the process that compiles all loops, and say whether it runs."""
    if not _compilers and find_spec("tvm") is not None and sys.executable:
        if cache_folder() is None:
            _own_folder.append(Path(tempfile.mkdtemp(prefix="tvm_ext_")))
            atexit.register(shutil.rmtree, _own_folder[0], ignore_errors=True)
        given = {**os.environ, CACHE_VARIABLE: str(_folder())}
        given["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-m", f"{__package__}.compiled", *LOOPS]
        with contextlib.suppress(OSError):
            made = subprocess.Popen(command, env=given, stdin=quiet, stdout=quiet, stderr=quiet)
            _compilers.append(made)
    return _is_compiling()


def _folder() -> Path | None:
    """Return where compiled loops are found: the cache folder, or one for this process alone."""
    return cache_folder() or (_own_folder[0] if _own_folder else None)


def loop(function: Callable[..., None]) -> Loop | None:
    """Return a function as a compiled loop, from this process, the cache folder or the compiler.

    This waits for the compiler. None where TVM is not installed or cannot compile for this machine.
    """
    name = _name(function)
    if name not in _loaded:
        _loaded[name] = _from_cache(function) or _from_compiler(function)
    return _loaded[name]


@dataclass(frozen=True)
class Room:
    """A sequence of a state that the loop writes before it reads it."""

    size: int


def start(function: Callable[..., None], state: State, is_compiled: bool) -> BoundLoop[State]:
    """Return a loop on a state: compiled, on arrays, or as Python, on lists.

    Ask `loop` first whether there is a compiled one. Room is taken as it is used.
    """
    make: Any = type(state)
    fill = _array if is_compiled else _list
    made: State = make(*(each if isinstance(each, int) else fill(each) for each in state))
    if not is_compiled:
        return BoundLoop(made, partial(function, made))
    run, ffi = loop(function), importlib.import_module("tvm_ffi")
    assert run is not None, "only asked for where the loop can be compiled"
    # Compiled code takes tensors that share the arrays' memory.
    tensors = (each if isinstance(each, int) else ffi.from_dlpack(each) for each in made)
    return BoundLoop(made, partial(run, *tensors))


class _Used(dict[int, int]):
    """The values of a scratch sequence that Python has used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def _list(values: Any) -> Any:
    if isinstance(values, Room):
        return _Used(values.size)
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _array(values: Any) -> Array:
    """Return a sequence as an array for compiled code; room is not touched.

    One of no elements has no address, so an element that is never read stands for it.
    """
    is_room = isinstance(values, Room | _Used)
    given = np.asarray([] if is_room else values, dtype=np.int64)
    count = max(1, values.size if is_room else len(given))
    raw = np.empty(8 * count + ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    array = raw[begin : begin + 8 * count].view(np.int64)
    array[: len(given)] = given
    if isinstance(values, _Used):
        array[list(values)] = list(values.values())
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
    # A loop may call helpers of another one.
    for module in (*LOOPS, function.__module__, _TRANSLATOR, f"{__package__}.blocks"):
        found = find_spec(module)
        if found is not None and found.origin is not None:
            content.update(_statements(Path(found.origin)).encode())
    return f"{_name(function)}-{content.hexdigest()[:32]}"


def _statements(source: Path) -> str:
    """Return a module without its comments and docstrings."""
    tree = ast.parse(source.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            is_text = [isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant) for e in body]
            node.body = [e for e, text in zip(body, is_text, strict=True) if not text]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _named(stem: str, library: Path) -> str:
    """Return the name that a library with these bytes has."""
    content = library.read_bytes()
    return f"{stem}-{len(content)}-{hashlib.sha256(content).hexdigest()[:32]}{_SUFFIX}"


def _is_ours_alone(path: Path) -> bool:
    """Return whether a folder or a file is the user's, and nobody else may write it."""
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
    folder, stem = _folder(), _stem(function)
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


if __name__ == "__main__":
    for module in sys.argv[1:]:
        # As the importer knows it: this module runs under another name.
        known = importlib.import_module(f"{__package__}.compiled")
        known.loop(importlib.import_module(module).advance)
