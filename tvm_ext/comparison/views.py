# SPDX-License-Identifier: Apache-2.0
"""What ``tvm-ext compare`` shows in the place of planners, by options; but StorageRewrite's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tvm import relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.gmem import GMEMOptions
from passes.order import FunctionOrder
from passes.planning import Budget, MemoriesProblem, Status
from passes.relax import NUM_INPUT, functions_in_order
from passes.shared_memory import SCOPES, allocated_bytes
from tvm_ext import transform
from tvm_ext.commands.command_options import Report, progress_line, read_memories, sizes_of
from tvm_ext.commands.plan_command import planned_memories
from tvm_ext.comparison.banked_greedy import greedy
from tvm_ext.layer_group_report import check_local_memory, layer_groups
from tvm_ext.lowering import (
    DEFAULT_TARGET,
    Reordered,
    capture_relax,
    check_lowered,
    known_target,
    twin_of,
    up_to_shared_memory,
)
from tvm_ext.reading.input_sizes import open_dimensions
from tvm_ext.reading.programs import load_program, problems_of, read_network
from tvm_ext.text import Table

DEFAULT_CHIP = "sophgo/bm1684x"
"""The chip whose local memory ``--layer-group`` takes where no target is named."""

SECONDS = 10.0  # Time for each plan of several memories


def show_layer_groups(args: argparse.Namespace) -> Report:
    """Show the groups of a network's layers; raises ValueError on bad input."""
    mod = read_network(args.program, "--layer-group", sizes_of(args))
    # A file may have registered the target.
    target = known_target(args.target or DEFAULT_CHIP)
    check_local_memory(target)
    with progress_line("layers") as progress:
        found = layer_groups(mod, target, progress=progress)
    groups = [{k: v for k, v in vars(g).items() if k != "planned"} for g in found.groups]
    data = {**vars(found), "groups": groups, "left": [one._asdict() for one in found.left]}
    return Report(data, found.table().text())


# ---------------------------------------------------------------------------- shared memory

_APART = partial(transform.StorageRewrite, shared_apart=True)
_MERGE = s_tir.transform.MergeSharedMemoryAllocations
_WAYS = {
    "default": (tirx.transform.StorageRewrite, _MERGE, {}),
    "merged": (tirx.transform.StorageRewrite, _MERGE, {"tirx.merge_static_smem": True}),
    "ours": (_APART, partial(transform.PlanSharedMemory, barriers="existing"), {}),
    "insert": (_APART, partial(transform.PlanSharedMemory, barriers="insert"), {}),
}
"""The passes in the places of `StorageRewrite` and of the merge, and the pass configuration."""


def show_shared_memory(args: argparse.Namespace) -> Report:
    """Plan each kernel in each way; the status is 1 if ours takes more than TVM's default."""
    program = load_program(args.program, args.target, sizes_of(args))
    plain, rows, above = [], [("function", *_WAYS)], 0
    for name, func in program.functions.items():
        check_lowered(name, func)
        taken = {way: _taken(func, way) for way in _WAYS}
        if any(taken.values()):
            plain.append({"function": name, "taken": taken})
            rows.append((name, *("fails" if n is None else f"{n:,}" for n in taken.values())))
            default, ours = taken["default"], taken["ours"]
            above += default is not None and ours is not None and ours > default
    note = f"{len(plain)} functions; ours takes more than TVM's default in {above}"
    table = Table("bytes of shared memory", rows, [note]).text()
    return Report(plain, table if plain else ["no kernel allocates shared memory"], min(above, 1))


def _taken(func: PrimFunc, way: str) -> int | None:
    """Return the bytes of the kernel that takes most; None where a pass fails."""
    rewrite, merge, config = _WAYS[way]
    with PassContext(config=config):
        passes = Sequential([rewrite(), up_to_shared_memory(), merge()])
        try:
            planned = passes(IRModule({"main": func}))["main"]
        except RuntimeError:  # An internal error of TVM.
            return None
    by_scope = (allocated_bytes(planned, scope) for scope in SCOPES)
    return max(map(sum, zip(*by_scope, strict=True)), default=0)


# -------------------------------------------------------------------------- several memories


def show_memories(args: argparse.Namespace) -> Report:
    """Choose memories in each way; raises ValueError on bad input."""
    memories = read_memories(args.memories)
    words, data, lines = [*memories], [], []
    for problem in problems_of(args.program, memories, args.target, sizes_of(args)):
        found = list(_ways(problem, words))
        ours = next((moved for name, moved, _ in found if name == "ours"), None)
        best = ours[words[-1]] if ours else 0
        rows = [("chosen", *(f"bytes over {word}" for word in words[1:]), "of ours", "")]
        for name, moved, note in found:
            data.append({"function": problem.name, "name": name, "moved": moved, "note": note})
            if moved is None:
                rows.append((name, *[""] * len(words), note or "no place for all"))
            else:
                ratio = f"{moved[words[-1]] / best:.2f}" if best else ""
                rows.append((name, *(f"{moved[word]:,}" for word in words[1:]), ratio, note))
        lines += Table(f"{problem}", rows, left=(0, len(words) + 1)).text()
    return Report(data, lines)


def _ways(
    problem: MemoriesProblem, words: Sequence[str]
) -> Iterator[tuple[str, dict[str, int] | None, str]]:
    """Yield ways to choose memories: a name, the bytes moved by word, and what is proven.

    None is a way without a place for all.
    """

    def moved(chosen: Mapping[str, int]) -> dict[str, int]:
        counted = dict.fromkeys(words, 0)
        for buffer in problem.buffers:
            counted[words[chosen[buffer.name]]] += problem.cost(buffer, chosen[buffer.name])
        return counted

    yield (
        "all in the slowest",
        moved({b.name: max(problem.allowed(b)) for b in problem.buffers}),
        "",
    )
    rule = greedy(problem)
    by_rule = {n: problem.memory_index[memory] for n, (memory, _) in (rule or {}).items()}
    yield "greedy, as ExecuTorch", None if rule is None else moved(by_rule), ""
    for name, moves in (("ours", False), ("ours, tensors move", True)):
        plan = planned_memories(problem, Budget(1 << 60, SECONDS), moves)
        note, ours = "does not fit", None
        if plan.fits:
            ours = {w: plan.moved[m.name] for w, m in zip(words, problem.memories, strict=True)}
            note = "least (proven)" if plan.status is Status.OPTIMAL else plan.status.value
            note += f", {len(plan.copies)} copies" if plan.copies else ""
        yield name, ours, note
        bound = dict(zip(words, reversed(plan.bound), strict=True))
        yield f"  no plan is below{', moves' * moves}", bound, ""


# ------------------------------------------------------------------------------------- order


def show_order(args: argparse.Namespace) -> Report:
    """Order a network's operators; raises ValueError on bad input."""
    # A file may register the target.
    mod = read_network(args.program, "--order", sizes_of(args))
    target, lifted = known_target(args.target or DEFAULT_TARGET), _lifted(mod)
    target = twin_of(target) or target
    rows = [("function", "operators", "moved", "as written", "found", "bound", "proven")]
    data, notes = [], []
    for fuse in (True, False):
        folded = {} if lifted is None else {one.name: one for one in _orders(lifted, target, fuse)}
        for one in _orders(mod, target, fuse):
            name = f"{one.name}, {'fused' if fuse else 'not fused'}"
            proven, numbers = "lowest of any order" if one.optimal else "no", ("", "", "")
            if one.given:  # Bytes that live at once
                numbers = (f"{one.given:,}", f"{one.found:,}", f"{one.bound:,}")
            rows.append((name, f"{one.operators:,}", f"{len(one.moved):,}", *numbers, proven))
            if one.moved:
                less = one.given - one.found
                notes.append(f"{name}: {less:,} bytes less ({less / one.given:.1%})")
            if reason := one.reason or one.needs:
                notes.append(f"{name}: {reason}")
            saved = one.found - folded[one.name].found if folded else None
            if saved:
                notes.append(
                    f"{name}: folded before the run: {saved:,} bytes less; "
                    "relax.transform.LiftTransformParams computes once what weights alone decide"
                )
            row = {"function": one.name, "fused": fuse, "reason": reason, "folded": saved}
            row |= {key: getattr(one, key) for key in ("operators", "given", "found", "bound")}
            data.append({**row, "moved": one.moved, "proven": one.optimal})
    if opened := open_dimensions(mod):
        notes.append(f"not counted: tensors whose size rests on {', '.join(opened)}")
    return Report(data, Table("bytes of activations", rows, notes, left=(0, 6)).text())


def _orders(mod: IRModule, target: Target, fuse: bool) -> tuple[FunctionOrder, ...]:
    """Return the orders that `OrderForMemory` finds of the Relax functions of a module."""
    reordered = Reordered(GMEMOptions(target=target))
    capture_relax(mod, target, fuse=fuse, between=reordered)
    return reordered.orders


def _lifted(mod: IRModule) -> IRModule | None:
    """Return a module in which a function of its own computes what weights alone decide."""
    if not any(func.attrs and NUM_INPUT in func.attrs for _, func in functions_in_order(mod)):
        return None
    try:
        return relax.transform.LiftTransformParams()(mod)
    except Exception:  # any of TVM's passes may raise anything: then there is nothing to compare
        return None
