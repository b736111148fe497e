# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --shared-memory``: what GPU kernels take, by TVM's settings and by ours."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.tirx import PrimFunc

from passes.driver import name_of, prim_funcs
from passes.shared_memory.analysis.steps import SCOPES, allocated_bytes
from tvm_ext import transform
from tvm_ext.programs import load_program
from tvm_ext.shared_memory_lowering import up_to_shared_memory
from tvm_ext.text import in_columns

_MERGED = {"tirx.merge_static_smem": True}


@dataclass(frozen=True)
class _Way:
    """A way from functions in front of `StorageRewrite` to planned shared memory."""

    first: Callable[[], Pass]
    last: Callable[[], Pass]
    config: Mapping[str, Any]


def _ours(barriers: transform.Barriers) -> _Way:
    return _Way(
        lambda: transform.StorageRewrite(shared_apart=True),
        lambda: transform.PlanSharedMemory(barriers=barriers),
        {},
    )


_MERGE = s_tir.transform.MergeSharedMemoryAllocations
_WAYS = {
    "default": _Way(tirx.transform.StorageRewrite, _MERGE, {}),
    "merged": _Way(tirx.transform.StorageRewrite, _MERGE, _MERGED),
    "ours": _ours("existing"),
    "insert": _ours("insert"),
}


@dataclass(frozen=True)
class KernelBytes:
    """What the shared memory of one function's kernels takes: bytes of the one that takes most."""

    function: str
    # By the name of the way; None where TVM's passes fail.
    taken: dict[str, int | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option to the parser of ``compare``."""
    parser.add_argument(
        "--shared-memory",
        action="store_true",
        help="show instead what the shared memory of each GPU kernel takes: by TVM's default, by "
        "its static merge (which may race), and by ours, without and with more barriers",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if ours takes no more than TVM's default anywhere, otherwise 1.

    Raises
    ------
    ValueError
        On bad input.
    """
    program = load_program(args.program, args.target)
    found = [one for mod in program.functions for one in _kernel_bytes(mod)]
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    if not found:
        print("no kernel allocates shared memory")
        return 0
    rows = [("function", *_WAYS)]
    rows += [(one.function, *map(_cell, one.taken.values())) for one in found]
    print("\n".join(in_columns(rows)))
    above = [one for one in found if _is_above(one)]
    print(f"\n{len(found)} functions; ours takes more than TVM's default in {len(above)}")
    return 1 if above else 0


def _cell(size: int | None) -> str:
    return "fails" if size is None else f"{size:,}"


def _is_above(one: KernelBytes) -> bool:
    default, ours = one.taken["default"], one.taken["ours"]
    return default is not None and ours is not None and ours > default


def _kernel_bytes(mod: IRModule) -> Iterator[KernelBytes]:
    """Yield what the functions of a module take, if they take any."""
    for name, func in prim_funcs(mod).items():
        taken = {way: _taken(func, chosen) for way, chosen in _WAYS.items()}
        if any(taken.values()):
            yield KernelBytes(name if name_of(func) == "?" else name_of(func), taken)


def _taken(func: PrimFunc, way: _Way) -> int | None:
    """Return the bytes of the kernel that takes most; None where a pass fails."""
    passes = [way.first(), up_to_shared_memory(), way.last()]
    with PassContext(config=dict(way.config)):
        try:
            planned = Sequential(passes)(IRModule({"main": func}))["main"]
        except RuntimeError:  # An internal error of TVM.
            return None
    by_scope = (allocated_bytes(planned, scope) for scope in SCOPES)
    return max(map(sum, zip(*by_scope, strict=True)), default=0)
