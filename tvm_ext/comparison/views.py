# SPDX-License-Identifier: Apache-2.0
"""What ``tvm-ext compare`` shows in the place of planners: a table for each of these options.

``--order``, ``--layer-group``, ``--memories`` and ``--shared-memory``; ``--storage-rewrite`` has a
module of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from tvm import relax, s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.planning import Budget, MemoriesProblem, Status
from passes.planning.memories import greedy
from passes.relax import NUM_INPUT, functions_in_order
from passes.shared_memory import SCOPES, allocated_bytes
from tvm_ext import transform
from tvm_ext.commands.command_options import Report, progress_line, read_memories, sizes_of
from tvm_ext.commands.plan_command import planned_memories
from tvm_ext.comparison.memory_comparison import allocated_memory
from tvm_ext.layer_group_report import check_local_memory, layer_groups
from tvm_ext.lowering import DEFAULT_TARGET, check_lowered, known_target, up_to_shared_memory
from tvm_ext.planned.placements import MapOptions
from tvm_ext.planned.relax_function import PlannedNetwork, plan_network
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


class Way(NamedTuple):
    """One way to choose the memories of a function's tensors."""

    function: str
    name: str
    moved: Mapping[str, int] | None  # Bytes by memory; None where the way finds no place for all
    note: str = ""  # What is proven, and the number of copies


def show_memories(args: argparse.Namespace) -> Report:
    """Choose memories in each way; raises ValueError on bad input."""
    memories = read_memories(args.memories)
    found, lines = [], []
    for problem in problems_of(args.program, memories, args.target, sizes_of(args)):
        found.append(ways(problem, [*memories]))
        lines += _table_of_ways(f"{problem}", found[-1], [*memories]).text()
    return Report([way._asdict() for each in found for way in each], lines)


def ways(problem: MemoriesProblem, words: Sequence[str]) -> list[Way]:
    """Return the bytes moved with all tensors slow, by ExecuTorch's rule and by our plans."""

    def moved(chosen: Mapping[str, int]) -> dict[str, int]:
        counted = dict.fromkeys(words, 0)
        for buffer in problem.buffers:
            counted[words[chosen[buffer.name]]] += problem.cost(buffer, chosen[buffer.name])
        return counted

    way, rule = partial(Way, problem.name), greedy(problem)
    slowest = moved({b.name: max(problem.allowed(b)) for b in problem.buffers})
    by_rule = {n: problem.memory_index[memory] for n, (memory, _) in (rule or {}).items()}
    found = [
        way("all in the slowest", slowest),
        way("greedy, as ExecuTorch", None if rule is None else moved(by_rule)),
    ]
    for name, moves in (("ours", False), ("ours, tensors move", True)):
        plan = planned_memories(problem, Budget(1 << 60, SECONDS), moves)
        note, ours = "does not fit", None
        if plan.fits:
            ours = {w: plan.moved[m.name] for w, m in zip(words, problem.memories, strict=True)}
            note = "least (proven)" if plan.status is Status.OPTIMAL else plan.status.value
            note += f", {len(plan.copies)} copies" if plan.copies else ""
        bound = dict(zip(words, reversed(plan.bound), strict=True))
        found += [way(name, ours, note), way(f"  no plan is below{', moves' * moves}", bound)]
    return found


def _table_of_ways(title: str, found: Sequence[Way], words: Sequence[str]) -> Table:
    slow = words[-1]
    best = next((way.moved[slow] for way in found if way.name == "ours" and way.moved), None)
    rows = [("chosen", *(f"bytes over {word}" for word in words[1:]), "of ours", "")]
    for way in found:
        if way.moved is None:
            rows.append((way.name, *[""] * len(words), way.note or "no place for all"))
        else:
            ratio = f"{way.moved[slow] / best:.2f}" if best else ""
            rows.append((way.name, *(f"{way.moved[w]:,}" for w in words[1:]), ratio, way.note))
    return Table(title, rows, left=(0, len(words) + 1))


# ------------------------------------------------------------------------------------- order


@dataclass(frozen=True)
class OrderSavings:
    """Bytes of one function's activations, in the written order and in the order found."""

    function: str
    fused: bool
    operators: int  # Bindings of its dataflow blocks
    given: int  # The best plan of the written order
    found: int  # The best plan of the order that was found
    stock_given: int  # ``StaticPlanBlockMemory`` in the written order
    stock_found: int  # ``StaticPlanBlockMemory`` in the order that was found
    bound: int  # Lower bound of all orders; 0 where nothing was searched
    moved: tuple[str, ...]  # The fewest bindings without which the others are as written
    reason: str  # Why nothing moved, or which binding needs the bound by itself
    # Bytes saved by computing before the run what depends on weights alone; None where the module
    # does not say which parameters are weights
    folded: int | None
    not_counted: int  # Tensors of a size that only the running program knows

    @property
    def proven(self) -> bool:
        """Whether no plan of any order takes less."""
        return 0 < self.found <= self.bound


def show_order(args: argparse.Namespace) -> Report:
    """Order a network's operators; raises ValueError on bad input."""
    # A file may register the target.
    mod = read_network(args.program, "--order", sizes_of(args))
    target = known_target(args.target or DEFAULT_TARGET)
    found = [row for fuse in (True, False) for row in order_savings(mod, target, fuse=fuse)]
    nothing = "no function has tensors of a size that is known before the run"
    lines = _table_of_orders(found).text() if found else [nothing]
    return Report([{**asdict(row), "proven": row.proven} for row in found], lines)


def order_savings(mod: IRModule, target: Target, *, fuse: bool = True) -> tuple[OrderSavings, ...]:
    """Return what other orders save of each Relax function with something to plan."""

    def plans(mod: IRModule, order: bool) -> dict[str, PlannedNetwork]:
        networks = plan_network(mod, target, MapOptions(order=order), fuse=fuse, for_table=True)
        return {network.name: network for network in networks}

    lifted = _lifted(mod)
    by_given, by_found = plans(mod, False), plans(mod, True)
    by_folded = {} if lifted is None else plans(lifted, True)
    rows = []
    for name, network in by_found.items():
        (given, stock_given), (found, stock_found) = map(_bytes, (by_given[name], network))
        order, groups = network.order, network.found.memory.groups
        if order is None or not network.found.problem.buffers:
            continue
        saved = OrderSavings(
            name,
            fuse,
            order.operators,
            given,
            found,
            stock_given,
            stock_found,
            bound=min(order.bound, found),  # A plan does not pad its last tensor.
            moved=order.moved,
            reason=order.reason or order.needs,
            folded=found - _bytes(by_folded[name])[0] if by_folded else None,
            not_counted=sum(len(g.problem.buffers) for g in groups if g.unit is not None),
        )
        rows.append(saved)
    return tuple(rows)


def _bytes(network: PlannedNetwork) -> tuple[int, int]:
    """Return what the tensors of constant size take by the best plan, and by the stock pass."""
    assert network.stock is not None, "It is asked for above."
    return network.tensors[0].placements[0].plan.peak, allocated_memory(network.stock).nbytes


def _lifted(mod: IRModule) -> IRModule | None:
    """Return a module in which a function of its own computes what weights alone decide."""
    if not any(func.attrs and NUM_INPUT in func.attrs for _, func in functions_in_order(mod)):
        return None
    try:
        return relax.transform.LiftTransformParams()(mod)
    except Exception:  # any of TVM's passes may raise anything: then there is nothing to compare
        return None


def _table_of_orders(found: Sequence[OrderSavings]) -> Table:
    """Return what orders save, and below it why no more."""
    rows = [("function", "order", "operators", "moved", "stock", "best", "bound", "proven")]
    notes = []
    for one in found:
        name = f"{one.function}, {'fused' if one.fused else 'not fused'}"
        stock, given = f"{one.stock_given:,}", f"{one.given:,}"
        rows.append((name, "as written", f"{one.operators:,}", "", stock, given, "", ""))
        stock, best = f"{one.stock_found:,}", f"{one.found:,}"
        proven = "lowest of any order" if one.proven else "no"
        rows.append(("", "found", "", f"{len(one.moved):,}", stock, best, f"{one.bound:,}", proven))
        less = one.given - one.found
        said = [f"{less:,} bytes less ({100 * less / one.given:.1f}%)"] if one.moved else []
        said += [one.reason] if one.reason else []
        if one.not_counted:
            what = "tensors of a size known at run time only"
            said.append(f"not counted: {what}: {one.not_counted}")
        if one.folded:
            said.append(
                f"folded before the run: {one.folded:,} bytes less; "
                "relax.transform.LiftTransformParams computes once what weights alone decide"
            )
        notes += [f"{name}: {line}" for line in said]
    return Table("bytes of activations", rows, notes, left=(0, 1, 7))
