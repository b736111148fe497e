# SPDX-License-Identifier: Apache-2.0
"""Make a model for TensorFlow Lite Micro fit: plan its arena, write the plan, prove it by running.

The steps are those of the modules beside this one; `fit` joins them and `Fit` says what was found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from passes.order import LiveBytes, OrderProblem, find_order
from passes.planning import Plan, Problem, check, lower_bound, solve, verify
from target_hw.memory import round_up
from tvm_ext.hosts.tflite_micro.arena_head import (
    ALIGNMENT,
    ArenaHead,
    Scratch,
    arena_of,
    greedy_plan,
    in_place_pairs,
)
from tvm_ext.hosts.tflite_micro.interpreter import (
    Usage,
    apart,
    is_installed,
    measure,
    results_of,
    scratch_of,
)
from tvm_ext.hosts.tflite_micro.read_model import Model, Subgraph, read_model
from tvm_ext.hosts.tflite_micro.write_plan import with_order, with_plan

RUNS = 3
"""The number of runs of a model on random inputs, before and after."""

STATEFUL = ("ASSIGN_VARIABLE", "CALL_ONCE", "CUSTOM", "RANDOM", "READ_VARIABLE", "VAR_HANDLE")
"""Prefixes of operators that may share a state: they keep their order among each other."""


@dataclass(frozen=True)
class Fitting:
    """One way to plan a model's arena."""

    in_place: bool  # Whether results may take the bytes of an operand
    moved: bool  # Whether the operators run in another order than the file's
    model: Model
    arena: ArenaHead
    problem: Problem
    plan: Plan
    bound: int  # Bytes that no plan of the problem is below

    @property
    def head(self) -> int:
        """Bytes of the arena's head."""
        return self.plan.peak

    @property
    def proven(self) -> bool:
        """Whether no plan of this order, with these results in place, has a smaller head."""
        return self.plan.peak <= self.bound or self.plan.status.value == "optimal"

    @property
    def label(self) -> str:
        """The name that tables use."""
        words = ("offsets", *("in place",) * self.in_place, *("another order",) * self.moved)
        return ", ".join(words)

    def content(self) -> bytes:
        """Return the file with this plan, and order, in it."""
        return with_plan(self.model, self.arena.plan_of(self.model, self.plan))


@dataclass(frozen=True)
class Fit:
    """The memory of a model under TensorFlow Lite Micro, and under our plans.

    Attributes
    ----------
    model : Model
        As the file has it.
    stock : Plan
        TensorFlow Lite Micro's own plan, or the file's, reproduced.
    choices : tuple of Fitting
        Offsets alone, results in place, another order, and both where there are such.
    usage : Usage or None
        What TensorFlow Lite Micro reports of the file; None where it was not asked or cannot hold
        the model.
    remark : str
        Why it was not asked, or its own words.
    scratch : dict
        Bytes of scratch memory by subgraph and operator, as far as it is known.
    assumed : bool
        Whether some of it is of other kernels than those that were asked: then only the plan says
        how large the head is on the device.
    order_bound : int
        Bytes of the head that no order of the operators is below where no result is in place; 0 if
        orders are not tried, as in a model of several subgraphs.
    """

    model: Model
    arena: ArenaHead
    stock: Plan
    choices: tuple[Fitting, ...]
    usage: Usage | None
    remark: str
    scratch: Scratch
    assumed: bool
    order_bound: int

    def proof(self, choice: Fitting) -> str:
        """Return in which regard no plan has a smaller head than one of the choices."""
        if not choice.proven:
            return ""
        in_any = not choice.in_place and choice.head == self.order_bound
        return "smallest in any order" if in_any else "smallest in this order"

    def best(self, *, in_place: bool, order: bool) -> Fitting:
        """Return the smallest head of what is allowed; of equals the one that changes least."""
        allowed = [one for one in self.choices if one.in_place <= in_place and one.moved <= order]
        return min(allowed, key=lambda one: (one.head, one.moved, one.in_place))

    @property
    def head(self) -> int:
        """Bytes of the head today, as reported, or else of the reproduced plan."""
        return self.stock.peak if self.usage is None or self.assumed else self.usage.head


def fit(content: bytes, name: str, scratch: Scratch | None = None) -> Fit:
    """Plan the arena of a model in every way.

    Parameters
    ----------
    content : bytes
        A ``.tflite`` file.
    name : str
        What messages call it.
    scratch : dict, optional
        Bytes of scratch memory that kernels ask for, by subgraph and operator, beside those that
        the reference kernels do; the larger figure counts.

    Raises
    ------
    ValueError
        If the file is no model of TensorFlow Lite, or one that TensorFlow Lite Micro plans in a way
        that is not understood here: its report differs from the reproduction of its planner. Also
        if the file's own plan lets live tensors share bytes, other than in place.
    """
    model = read_model(content, name)
    usage, remark, asked = None, "", dict(scratch or {})
    if is_installed():
        try:
            usage = apart(measure, content)
        except ValueError as error:
            remark = f"TensorFlow Lite Micro cannot run this file here: {error}"
        else:
            for key, size in apart(scratch_of, model).items():
                asked[key] = max(size, asked.get(key, 0))
    else:
        remark = "not run: the package 'tflite-micro' is not installed"
    arena = arena_of(model, asked)
    stock = greedy_plan(arena)
    if usage is not None and not scratch and usage.head != stock.peak:
        raise ValueError(
            f"{name}: TensorFlow Lite Micro reports a head of {usage.head} bytes, its planner as "
            f"it is known here gives {stock.peak}: the model is not understood, and not planned"
        )
    wrong = verify(arena.problem(model, tuple(in_place_pairs(model, arena))), stock)
    shared = next((each for each in wrong if each.kind in ("overlap", "in place")), None)
    if model.plan is not None and shared is not None:
        # As compilers for an NPU write it: its code counts on where the tensors lie.
        raise ValueError(
            f"{name}: the file's own plan lets tensors share bytes while they are live, so it "
            f"stays: {shared.message}"
        )
    choices = [*_choices(model, asked, moved=False)]
    live = 0
    if len(model.subgraphs) == 1:  # An operator that runs a subgraph must not be moved alone.
        (graph,) = model.subgraphs
        found = find_order(_order_problem(graph, asked))
        order, live = found.order, found.bound
        if order != tuple(range(len(order))):
            graph = replace(graph, operators=tuple(graph.operators[at] for at in order))
            written = with_order(content, model.operator_vectors[0], order)
            ordered = replace(model, subgraphs=(graph,), content=written)
            place = {(0, operator): (0, at) for at, operator in enumerate(order)}
            there = {place[key]: size for key, size in asked.items()}
            choices += _choices(ordered, there, moved=True)
    return Fit(model, arena, stock, tuple(choices), usage, remark, asked, bool(scratch), live)


def _choices(model: Model, scratch: Scratch, *, moved: bool) -> list[Fitting]:
    arena = arena_of(model, scratch)
    pairs = tuple(in_place_pairs(model, arena))
    found = []
    for in_place in (False, True) if pairs else (False,):
        problem = arena.problem(model, pairs if in_place else ())
        plan = solve(problem)
        check(problem, plan)
        found.append(Fitting(in_place, moved, model, arena, problem, plan, lower_bound(problem)))
    return found


def _order_problem(graph: Subgraph, scratch: Scratch) -> OrderProblem:
    """Return the problem of ordering the operators of a model's only subgraph."""
    writer: dict[int, int] = {}
    before: list[tuple[int, ...]] = []
    state: int | None = None
    writes = Counter([*graph.inputs, *(t for one in graph.operators for t in one.outputs)])
    rewritten: dict[int, int] = {}  # The last operator that touches what is written again
    touched: dict[int, list[int]] = {}
    for number, one in enumerate(graph.operators):
        earlier = {writer[tensor] for tensor in one.operands if tensor in writer}
        if one.name.startswith(STATEFUL):
            earlier |= set() if state is None else {state}
            state = number
        for tensor in sorted({*one.operands, *one.outputs}):
            touched.setdefault(tensor, []).append(number)
            if graph.tensors[tensor].is_variable or writes[tensor] > 1:
                earlier |= {rewritten[tensor]} if tensor in rewritten else set()
                rewritten[tensor] = number
        writer.update(dict.fromkeys(one.outputs, number))
        before.append(tuple(sorted(earlier)))
    tensors = [
        LiveBytes(
            round_up(tensor.size, ALIGNMENT),
            tuple(touched.get(number, ())),
            begun=number in graph.inputs,
            kept=number in graph.outputs,
        )
        for number, tensor in enumerate(graph.tensors)
        if tensor.in_arena and (number in touched or number in graph.inputs)
    ]
    tensors += [
        LiveBytes(round_up(size, ALIGNMENT), (operator,))
        for (_, operator), size in sorted(scratch.items())
    ]
    return OrderProblem(tuple(before), tuple(tensors))


@dataclass(frozen=True)
class Proof:
    """The results of running a written file."""

    after: Usage
    runs: int  # On random inputs, with equal bits each
    remark: str = ""  # The reason for which it was not run


def prove(found: Fit, choice: Fitting, written: bytes) -> Proof | None:
    """Run a file before and after; None where TensorFlow Lite Micro cannot hold it.

    Raises
    ------
    ValueError
        If a result differs, or the arena is above what it was: then the file must not be used.
    """
    if found.usage is None:
        return None
    name, graph = found.model.name, found.model.subgraphs[0]
    after = apart(measure, written)
    if not found.assumed and after.total > found.usage.total:
        raise ValueError(
            f"{name}: with {choice.label} TensorFlow Lite Micro takes {after.total} bytes where it "
            f"took {found.usage.total}"
        )
    try:
        expected = apart(results_of, found.model.content, graph, RUNS)
    except ValueError as error:
        return Proof(after, 0, f"as it is the model does not run on random inputs: {error}")
    if apart(results_of, written, graph, RUNS) != expected:
        raise ValueError(f"{name}: with {choice.label} the model computes other bits")
    return Proof(after, RUNS)
