# SPDX-License-Identifier: Apache-2.0
"""Programs by what a user calls them: a workload, a kernel for Ascend cores, or a file.

A file is TVMScript, a module saved as JSON, a network of ONNX or PyTorch, or a table of buffers.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import tvm
import tvm_ffi
from tvm.error import DiagnosticError
from tvm.script import ir as script_ir
from tvm.script import relax as script_relax
from tvm.script import tirx as script_tirx
from tvm.tirx.layout import Axis

from passes.gmem import GMEMOptions, memories_problem
from passes.ir import IRModule, PrimFunc, Target, first_line, structural_equal
from passes.planning import MemoriesProblem, Problem
from passes.planning.files import read_memories_problem, read_problem
from passes.relax import functions_in_order, rx
from target_hw.memory import MemoryScope
from tvm_ext import progress, workloads
from tvm_ext.lowering import (
    DEFAULT_TARGET,
    as_module,
    capture_relax,
    has_relax,
    known_target,
    legalized,
    split,
    twin_of,
)
from tvm_ext.reading.input_sizes import InputSizes, bind_hint, open_dimensions
from tvm_ext.reading.networks import EXPORTED, read_exported
from tvm_ext.reading.onnx_files import ONNX, read_onnx
from tvm_ext.text import did_you_mean
from tvm_ext.weights import as_built

SCRIPT, JSON, TABLE = ".py", ".json", ".csv"

SUFFIXES = (JSON, SCRIPT, ONNX, EXPORTED)
"""The suffixes of files of programs."""
_LISTED = (TABLE, ".pte", ".tflite")  # Files of other hosts list their buffers, as a table does.
_ENDINGS = ", ".join((*SUFFIXES, *_LISTED))

_CONTAINERS = ("ffi.Array", "ffi.Dict", "ffi.List", "ffi.Map")
_PLAIN = range(64)
"""The type indices below those of objects: fields of such a type are saved as they are."""

ASCEND = "ascend:"
"""The prefix of kernels for Ascend cores: ``ascend:gelu``, or with a size
``ascend:gelu:reuse``."""


@dataclass(frozen=True, eq=False)
class Program:
    """A program to plan, and the target that it was lowered for."""

    name: str  # The user's name for it
    functions: Mapping[str, PrimFunc]  # By name, as they stand before ``StorageRewrite``
    relax: IRModule | None = None  # The program before operators are fused, if that is Relax
    target: Target | None = None  # The target that it was lowered for, if it was
    assumed: str = ""  # An assumption in the place of an option that was not given; empty if none
    # The Relax module as it was given, where its calls compute tensors from weights alone
    given: IRModule | None = None

    @property
    def title(self) -> str:
        """The name, and what was assumed."""
        return f"{self.name} ({self.assumed})" if self.assumed else self.name


def load_program(
    what: str, target: str | Target | None = None, sizes: InputSizes | None = None
) -> Program:
    """Read and lower a program: what `read_module` takes, or ``ascend:KERNEL[:SIZE]``.

    By default a kernel is lowered for its chip, and a network for `DEFAULT_TARGET`; a ``.py`` file
    may register the target. `sizes` fix those that a network leaves open. Raises ValueError when
    there is no such program, it cannot be read or lowered, or has no PrimFunc.
    """
    if not _is_kernel(what):
        default = None if _is_file(what) else DEFAULT_TARGET
        return program_of(
            read_module(what, sizes), default if target is None else target, name=what
        )
    if sizes:
        raise ValueError(f"{what}: is a kernel, and sizes of inputs are for networks")
    resolved = known_target(f"{workloads.ascend.CHIP}-llvm" if target is None else target)
    named: Any = what.removeprefix(ASCEND).split(":", 1)  # A kernel and perhaps a size
    kernel = workloads.ascend_kernel(*named)
    return Program(what, split(kernel.lower(resolved)), target=resolved)


def program_of(
    mod: IRModule | PrimFunc | rx.Function, target: str | Target | None = None, *, name: str
) -> Program:
    """Lower a module, or a function, for a target as `split` does; messages call it `name`.

    Relax functions are lowered as they would be built, without what depends on weights alone.
    """
    given, assumed = as_module(mod), ""
    built = mod = as_built(given)
    is_network = has_relax(mod)
    resolved = None if target is None else known_target(target)
    if resolved is None and is_network:
        resolved = known_target(DEFAULT_TARGET)
        assumed = f"lowered for {DEFAULT_TARGET}, as no target is named"
    elif resolved is not None and is_network and (twin := twin_of(resolved)) is not None:
        resolved = twin
        assumed = f"lowered for {twin.attrs['model']}-llvm, the chip's twin on the CPU"
    try:
        if resolved is not None and is_network:
            mod = legalized(built, resolved)
        functions = split(mod, target=resolved)
    except ValueError as error:
        opened = open_dimensions(built)
        hint = f"; its sizes are open, try {bind_hint(opened)}" if opened else ""
        raise ValueError(f"{name}: {error}{hint}") from error
    network, changed = mod if is_network else None, given if built is not given else None
    return Program(name, functions, network, resolved, assumed, changed)


def read_module(what: str, sizes: InputSizes | None = None) -> IRModule:
    """Return the module of a file, or of a network that is a workload; ValueError if none."""
    with progress.stage(f"reading {what}"):
        if _is_file(what):
            return read_program(*split_name(what), sizes)
        if _is_kernel(what):
            raise ValueError(f"{what}: is a kernel, and no network")
        return sized(what, workloads.model(what), sizes)


def sized(what: str | Path, mod: IRModule, sizes: InputSizes | None) -> IRModule:
    """Return a module with sizes of its inputs; messages call it `what`."""
    try:
        return mod if sizes is None else sizes.apply(mod)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def read_network(what: str, option: str, sizes: InputSizes | None = None) -> IRModule:
    """Return the module of a file or workload; ValueError if it is no network."""
    mod = None if what.endswith(TABLE) else read_module(what, sizes)
    if mod is None or not has_relax(mod):
        raise ValueError(f"{what}: {option} needs a Relax network")
    return mod


def _is_file(what: str) -> bool:
    """Return whether a file is meant: by its ending, by a folder in it, or because it is one."""
    path, _ = split_name(what)
    return path.suffix in SUFFIXES or len(path.parts) > 1 or path.exists()


def _is_kernel(what: str) -> bool:
    """Return whether a workload is a kernel; ValueError, with suggestions, if it is unknown."""
    if _is_file(what):
        return False
    kernels = [f"{ASCEND}{kernel}" for kernel in workloads.ascend_kernels()]
    known = [*workloads.NETWORKS, *kernels]
    name = ":".join(what.split(":")[:2]) if what.startswith(ASCEND) else what
    if name not in known:
        hint = did_you_mean(name, known)
        raise ValueError(
            f"unknown workload {what!r}: {hint}'tvm-ext compare --list' lists all {len(known)}; "
            f"the name of a file must end in {_ENDINGS}"
        )
    return name in kernels


def read_table(
    what: str,
    memory: MemoryScope,
    target: str | Target | None = None,
    sizes: InputSizes | None = None,
    *,
    name: str | None = None,
) -> Problem:
    """Return the problem of a table of buffers, which has no target and no open sizes."""
    with _open_table(what, target, sizes) as stream:
        return read_problem(stream, name or what, memory)


def _open_table(what: str, target: object, sizes: InputSizes | None) -> TextIO:
    """Open a table; ValueError if there is none, or it is given what only a program has."""
    if target is not None or sizes:
        lacks = "inputs whose sizes are open" if sizes else "target; say what memory it has"
        raise ValueError(f"{what}: a table of buffers has no {lacks}")
    if not Path(what).is_file():
        raise ValueError(f"{what}: no such file")
    return open(what, encoding="utf-8-sig", newline="")


def problems_of(
    what: str,
    memories: Mapping[str, MemoryScope],
    target: str | Target | None = None,
    sizes: InputSizes | None = None,
) -> list[MemoriesProblem]:
    """Return a problem for each Relax function of a network, or of a table of buffers.

    `memories` are by the user's words, the fastest first. Buffers are the tensors between fused
    operators that have a known size and are not returned, touched where one writes or reads them.
    """
    scopes = tuple(memories.values())
    if what.endswith(TABLE):
        words = {word: scope.name for word, scope in memories.items()}
        with _open_table(what, target, sizes) as stream:
            return [read_memories_problem(stream, Path(what).name, scopes, words)]
    mod = read_network(what, "--memories", sizes)  # A file may register the target.
    chip = known_target(target or DEFAULT_TARGET)
    chip = twin_of(chip) or chip
    lowered = capture_relax(mod, chip)
    options, found = GMEMOptions(target=chip), []
    for variable, _ in functions_in_order(lowered):
        memory = options.read(lowered, variable)
        if memory.main.problem.buffers:
            problem, _ = memories_problem([memory], {}, scopes, options)
            found.append(replace(problem, name=memory.name))
    if not found:
        raise ValueError(f"{what}: no function has tensors of a size that is known before the run")
    return found


# ------------------------------------------------------------------------------------- files


def split_name(what: str) -> tuple[Path, str | None]:
    """Split ``FILE.py:NAME`` into the file and the name of what is meant in it, if one is given."""
    path, colon, name = what.rpartition(":")
    return (Path(path), name) if colon and path.endswith(".py") else (Path(what), None)


def read_program(
    path: Path, chosen: str | None = None, sizes: InputSizes | None = None
) -> IRModule:
    """Read a module or function from a file of TVMScript, JSON, ONNX or PyTorch.

    A ``.py`` file is run, as Python runs it; `chosen` names the module or function of it that is
    meant. Raises ValueError, which names the file and, where it is known, the line; ImportError
    when the package ``onnx`` or ``torch`` is not there.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory")
    sizes = sizes or InputSizes()
    if path.suffix == ONNX:
        # TVM may call the inputs by other names, and reads more where sizes are known.
        mod, sizes = read_onnx(path, sizes), InputSizes()
    elif path.suffix == EXPORTED:
        mod = read_exported(path)
    elif path.suffix == SCRIPT:
        mod = _read_script(path, _text_of(path), chosen)
    elif path.suffix == JSON:
        mod = _read_json(path, _text_of(path))
    else:
        if path.suffix in _LISTED:
            raise ValueError(f"{path}: lists buffers, and what is asked for needs a program of TVM")
        hint = "; torch.export.save writes a .pt2" if path.suffix in (".pt", ".pth") else ""
        raise ValueError(f"{path}: the name of a file must end in {_ENDINGS}{hint}")
    return sized(path, mod, sizes)


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at {error.start})") from error
    if not text.strip():
        raise ValueError(f"{path}: the file is empty")
    return text


def _read_json(path: Path, text: str) -> IRModule:
    try:
        _check_graph(json.loads(text))
        loaded = tvm.ir.load_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except Exception as error:  # TVM raises whatever it stumbles on
        raise ValueError(
            f"{path}: not a module saved with tvm.ir.save_json: {first_line(error)}"
        ) from error
    if not isinstance(loaded, IRModule | PrimFunc):
        kind = type(loaded).__name__
        raise ValueError(f"{path}: holds an object of type {kind}, not an IRModule")
    return as_module(loaded)


def _check_graph(graph: Any) -> None:
    """Raise ValueError on a graph of objects that has a cycle, on which TVM crashes."""
    for index, node in enumerate(graph["nodes"]):
        kind, data = node["type"], node.get("data")
        references = data if kind in _CONTAINERS else ()
        if isinstance(data, dict):
            references = [data.get(name) for name in _reference_fields(kind)]
        if any(isinstance(other, int) and other >= index for other in references):
            raise ValueError(f"node {index} refers to one that does not stand before it")


@cache
def _reference_fields(type_key: str) -> tuple[str, ...]:
    """List the fields of a type that are saved as the index of a node, not as a plain value."""
    names: list[str] = []
    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(type_key)
    while info is not None:
        names += (f.name for f in info.fields or () if f.field_static_type_index not in _PLAIN)
        info = info.parent_type_info
    return tuple(names)


def _read_script(path: Path, text: str, chosen: str | None) -> IRModule:
    """Read TVMScript: a text like those that TVM prints is parsed, any other module is run.

    TVM prints one definition without imports, and what it prints need not be well-formed.
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: not TVMScript: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"{path}: not TVMScript: {first_line(error)}") from error
    definitions = [s for s in statements if isinstance(s, ast.ClassDef | ast.FunctionDef)]
    if len(definitions) != 1 or any(isinstance(s, ast.Import | ast.ImportFrom) for s in statements):
        return _one_module(path, _run(path), chosen)
    try:
        parsed = tvm.script.from_source(text, check_well_formed=False)
    except Exception as error:  # names and calls in the text are evaluated
        raise _script_error(path, error) from error
    return _one_module(path, {definitions[0].name: parsed}, chosen)


def _run(path: Path) -> dict[str, Any]:
    """Run a file, in which the names are known that a text printed by TVM counts on."""
    known = {"tvm": tvm, "I": script_ir, "R": script_relax, "T": script_tirx, "Axis": Axis}
    sys.path.append(str(path.parent))
    try:
        return runpy.run_path(str(path.absolute()), known, "_tvm_ext_program")
    except BaseException as error:  # Also to exit, an interrupt, and what skips a test
        raise _script_error(path, error) from error
    finally:
        sys.path.remove(str(path.parent))


def _script_error(path: Path, error: BaseException) -> ValueError:
    """Say in one line what is wrong with a script, and in which line of it."""
    if isinstance(error, DiagnosticError):
        line = re.search(r"^ *--> .*?:(\d+):\d+$", str(error), re.MULTILINE)
        where = f"{path}:{line[1]}" if line else str(path)
        return ValueError(f"{where}: not TVMScript: {first_line(error).removeprefix('error: ')}")
    file, kind = str(path.absolute()), type(error).__name__
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    return ValueError(f"{where}: {kind}: {first_line(error).removeprefix(f'{kind}: ')}")


def _one_module(path: Path, defined: dict[str, Any], chosen: str | None) -> IRModule:
    """Make one module of what a script defines, or of what is chosen of it: modules, functions."""
    kinds = IRModule | PrimFunc | rx.Function
    found = {name: value for name, value in defined.items() if isinstance(value, kinds)}
    if chosen is not None:
        if chosen not in found:
            there = ", ".join(found) or "none"
            raise ValueError(f"{path}: defines no module and no function {chosen!r}; only {there}")
        found = {chosen: found[chosen]}
    modules = {name: value for name, value in found.items() if isinstance(value, IRModule)}
    if len(modules) > 1:
        raise ValueError(
            f"{path}: defines more than one IRModule ({', '.join(modules)}); choose one by its "
            f"name: {path}:{next(iter(modules))}"
        )
    functions: dict[str, Any] = {}
    for name, func in found.items():
        if name not in modules:
            symbol = str((func.attrs or {}).get("global_symbol", name))
            if not functions.setdefault(symbol, func).same_as(func):
                raise ValueError(f"{path}: defines two functions with the symbol {symbol!r}")
    for module, mod in modules.items():
        for symbol, func in functions.items():
            if not any(structural_equal(func, own) for own in mod.functions.values()):
                raise ValueError(
                    f"{path}: defines function {symbol!r} beside the IRModule {module}; "
                    f"put it into the module, or choose one by its name: {path}:{module}"
                )
        return mod
    if not functions:
        raise ValueError(f"{path}: not TVMScript: it defines no PrimFunc and no IRModule")
    return IRModule({s: func.with_attr("global_symbol", s) for s, func in functions.items()})
