"""Programs by what a user calls them: a workload, a kernel for Ascend cores, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvm.ir import IRModule
from tvm.target import Target

from tvm_ext import workloads
from tvm_ext.comparison.single_functions import split
from tvm_ext.lowering import first_line, has_relax, known_target
from tvm_ext.program_files import SUFFIXES, read_program

ASCEND = "ascend:"
"""How the names of kernels for Ascend cores begin: ``ascend:gelu``, or with a size
``ascend:gelu:reuse``."""


@dataclass(frozen=True, eq=False)
class Program:
    """What there is to plan, and what it was lowered for.

    Attributes
    ----------
    name : str
        What the user called it.
    functions : tuple of tvm.IRModule
        Each PrimFunc in a module of its own, as it stands before ``StorageRewrite``.
    relax : tvm.IRModule, optional
        The program before it was lowered, if that is Relax.
    target : tvm.target.Target, optional
        What it was lowered for, if it was.
    """

    name: str
    functions: tuple[IRModule, ...]
    relax: IRModule | None = None
    target: Target | None = None


def is_file(what: str) -> bool:
    """Return whether a user means a file: by its ending, by a folder in it, or because it is one.

    Parameters
    ----------
    what : str
        What the user wrote.
    """
    path = Path(what)
    return path.suffix in SUFFIXES or len(path.parts) > 1 or path.exists()


def load_program(what: str, target: str | Target | None = None) -> Program:
    """Read and lower a program.

    Parameters
    ----------
    what : str
        The name of a workload, ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``, or a file that
        `tvm_ext.program_files.read_program` reads.
    target : str or tvm.target.Target, optional
        What it is lowered for. By default the first target of a workload, and the chip of an
        Ascend kernel. A file of PrimFuncs without a target has to stand right before
        ``StorageRewrite``.

    Raises
    ------
    ValueError
        When there is no such program, it cannot be read or lowered, or has no PrimFunc.
    """
    resolved = None if target is None else known_target(target)
    if is_file(what):
        path = Path(what)
        return program_of(read_program(path), resolved, name=str(path))
    if what.startswith(ASCEND):
        return _load_ascend(what, resolved)
    return _load_workload(what, resolved)


def program_of(mod: IRModule, target: str | Target | None = None, *, name: str) -> Program:
    """Lower a module.

    Parameters
    ----------
    mod : tvm.IRModule
        It stays as it is.
    target : str or tvm.target.Target, optional
        As in `split`.
    name : str
        What messages call it.

    Raises
    ------
    ValueError
        As `split` does; the message begins with the name.
    """
    resolved = None if target is None else known_target(target)
    try:
        functions = tuple(split(mod, target=resolved))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Program(name, functions, mod if resolved and has_relax(mod) else None, resolved)


def _load_workload(name: str, target: Target | None) -> Program:
    workload = workloads.find(name)
    resolved = target or known_target(workload.targets[0])
    try:
        functions = tuple(split(workloads.load(name, resolved)))
    except Exception as error:  # any pass of the pipeline may raise anything
        kind = "its first target" if target is None else f"target kind {target.kind.name!r}"
        raise ValueError(
            f"cannot lower workload {name!r} for {kind}: {first_line(error)}"
        ) from error
    model = workloads.model(name) if workload.kind == "model" else None
    return Program(name, functions, model, resolved)


def _load_ascend(what: str, target: Target | None) -> Program:
    name, *size = what.removeprefix(ASCEND).split(":", 1)
    if size and size[0] not in workloads.ascend.SIZES:
        sizes = ", ".join(workloads.ascend.SIZES)
        raise ValueError(f"{what}: the size must be one of {sizes}, and is {size[0]!r}")
    kernel = workloads.ascend_kernel(name, *size)  # type: ignore[arg-type]
    resolved = target or known_target(f"{workloads.ascend.CHIP}-llvm")
    return Program(what, tuple(split(kernel.lower(resolved))), target=resolved)
