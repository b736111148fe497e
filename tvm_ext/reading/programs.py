# SPDX-License-Identifier: Apache-2.0
"""Programs by what a user calls them: a workload, a kernel for Ascend cores, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.gmem import GMEMOptions
from passes.planning import MemoriesProblem, Problem, Traffic
from passes.planning.files import read_memories_problem, read_problem
from target_hw.memory import MemoryScope
from tvm_ext import workloads
from tvm_ext.lowering import (
    DEFAULT_TARGET,
    as_module,
    capture_relax,
    has_relax,
    known_target,
    split,
    twin_of,
)
from tvm_ext.reading.input_sizes import InputSizes, open_dimensions
from tvm_ext.reading.program_files import SUFFIXES, read_program, split_name
from tvm_ext.text import did_you_mean

TABLE = ".csv"
"""How the name of a table of buffers ends."""

ASCEND = "ascend:"
"""How the names of kernels for Ascend cores begin: ``ascend:gelu``, or with a size
``ascend:gelu:reuse``."""


@dataclass(frozen=True, eq=False)
class Program:
    """What there is to plan, and what it was lowered for."""

    name: str  # What the user called it
    functions: Mapping[str, PrimFunc]  # By name, as they stand before ``StorageRewrite``
    relax: IRModule | None = None  # The program before it was lowered, if that is Relax
    target: Target | None = None  # What it was lowered for, if it was
    assumed: str = ""  # What was assumed because the user did not say it; empty if nothing

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
    if _is_file(what):
        return program_of(read_module(what, sizes), target, name=what)
    resolved = None if target is None else known_target(target)
    if not _is_kernel(what):
        return program_of(read_module(what, sizes), resolved or DEFAULT_TARGET, name=what)
    if sizes:
        raise ValueError(f"{what}: is a kernel, and sizes of inputs are for networks")
    resolved = resolved or known_target(f"{workloads.ascend.CHIP}-llvm")
    name, *size = what.removeprefix(ASCEND).split(":", 1)
    kernel = workloads.ascend_kernel(name, *size)  # type: ignore[arg-type]
    return Program(what, split(kernel.lower(resolved)), target=resolved)


def program_of(
    mod: IRModule | PrimFunc | relax.Function, target: str | Target | None = None, *, name: str
) -> Program:
    """Lower a module, or a function, for a target as `split` does; messages call it `name`."""
    mod, assumed = as_module(mod), ""
    is_network = has_relax(mod)
    resolved = None if target is None else known_target(target)
    if resolved is None and is_network:
        resolved = known_target(DEFAULT_TARGET)
        assumed = f"lowered for {DEFAULT_TARGET}, as no target is named"
    elif resolved is not None and is_network and (twin := twin_of(resolved)) is not None:
        resolved = twin
        assumed = f"lowered for {twin.attrs['model']}-llvm, the chip's twin on the CPU"
    try:
        functions = split(mod, target=resolved)
    except ValueError as error:
        opened = open_dimensions(mod)
        hint = f"; its sizes are open, try --bind {opened[0]}=8" if opened else ""
        raise ValueError(f"{name}: {error}{hint}") from error
    return Program(name, functions, mod if is_network else None, resolved, assumed)


def read_module(what: str, sizes: InputSizes | None = None) -> IRModule:
    """Return the module of a file, or of a network that is a workload; ValueError if none."""
    if _is_file(what):
        return read_program(*split_name(what), sizes)
    if _is_kernel(what):
        raise ValueError(f"{what}: is a kernel, and no network")
    try:
        return (sizes or InputSizes()).apply(workloads.model(what))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def read_network(what: str, option: str, sizes: InputSizes | None = None) -> IRModule:
    """Return the module of a file or workload; ValueError if it is no network."""
    mod = read_module(what, sizes)
    if not has_relax(mod):
        raise ValueError(f"{what}: {option} needs a Relax network")
    return mod


def _is_file(what: str) -> bool:
    """Return whether a file is meant: by its ending, by a folder in it, or because it is one."""
    path, _ = split_name(what)
    return path.suffix in SUFFIXES or len(path.parts) > 1 or path.exists()


def _is_kernel(what: str) -> bool:
    """Return whether a workload is a kernel; refuse what is none, and say what may be meant."""
    kernels = [f"{ASCEND}{kernel}" for kernel in workloads.ascend_kernels()]
    known = [*workloads.NETWORKS, *kernels]
    name = ":".join(what.split(":")[:2]) if what.startswith(ASCEND) else what
    if name not in known:
        hint = did_you_mean(name, known)
        raise ValueError(
            f"unknown workload {what!r}: {hint}'tvm-ext compare --list' lists all {len(known)}; "
            f"the name of a file ends in {', '.join(SUFFIXES)}"
        )
    return name in kernels


def read_table(what: str, memory: MemoryScope, name: str | None = None) -> Problem:
    """Return the problem of a table of buffers, called as its file or `name`."""
    if not Path(what).is_file():
        raise ValueError(f"{what}: no such file")
    with open(what, encoding="utf-8-sig", newline="") as stream:
        return read_problem(stream, name or what, memory)


def problems_of(
    what: str, memories: Mapping[str, MemoryScope], target: str | Target | None = None
) -> list[MemoriesProblem]:
    """Return a problem for each Relax function of a network, or of a table of buffers.

    `memories` are by the user's words, the fastest first. Buffers are the tensors between the
    operators, as TVM fuses them for the target, without those that the function returns or whose
    size only the running program knows. Each is touched where an operator writes or reads it.
    """
    scopes = tuple(memories.values())
    if what.endswith(TABLE):
        words = {word: scope.name for word, scope in memories.items()}
        with open(what, encoding="utf-8-sig", newline="") as stream:
            return [read_memories_problem(stream, Path(what).name, scopes, words)]
    mod = read_network(what, "--memories")  # A file may register the target.
    chip = known_target(target or DEFAULT_TARGET)
    lowered = capture_relax(mod, chip)
    options = GMEMOptions(target=chip)
    alignment = options.gmem().offset_alignment
    found = []
    for variable in sorted(lowered.get_global_vars(), key=lambda one: one.name_hint):
        if isinstance(lowered[variable], relax.Function):
            group = options.read(lowered, variable).main
            buffers = tuple(replace(b, alignment=alignment) for b in group.problem.buffers)
            traffic = {b.name: Traffic(touches=group.uses[b.name].touched_at) for b in buffers}
            if buffers:
                found.append(MemoriesProblem(buffers, scopes, traffic, variable.name_hint))
    if not found:
        raise ValueError(f"{what}: no function has tensors of a size that is known before the run")
    return found
