# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures in ``docs/pictures``: ``python docs/make_pictures.py``.

Those of networks show the tensors of one, with operators fused, as two planners place them. What is
drawn as stock is held against what the stock pass allocates: a map that takes more or less is not
written. Those of Ascend kernels show the pipelines under a plan that weighs what sharing costs, and
under one that does not. Those of layer groups are in ``layer_group_pictures.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm.target import Target

from passes.ascend.kernel import AscendOptions
from passes.ascend.planning.planner import plan_levels
from passes.planning import Plan, Problem, check
from passes.simulation import simulate
from target_hw import Machine
from tvm_ext import lowering, memory_map, workloads
from tvm_ext.report.chart import Picture
from tvm_ext.report.picture import draw_plans
from tvm_ext.report.timeline import pipeline_timelines

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lib"))
from allocated import allocated_memory
from layer_group_pictures import PICTURES as LAYER_GROUPS
from level_limit import plan_at_level

Map = tuple[str, Problem, Plan]
"""Title, problem and plan."""

STOCK = "storage_rewrite"
"""The planner that stands for the stock pass: checked to take as many bytes as it does."""

NETWORKS = {
    "squeezenet_stock_and_best.svg": (
        "SqueezeNet",
        "squeezenet",
        {"TVM's plan": STOCK, "ours": "best"},
    ),
    "squeezenet_rec_tbl_and_best.svg": (
        "SqueezeNet",
        "squeezenet",
        {"rec_tbl": "rec_tbl", "best": "best"},
    ),
}
"""By file name: what it shows, a workload, and the planner of each map with its title."""

TIMELINES = {"gelu_levels.svg": ("gelu", {"tile": 14336, "tiles": 6})}
"""By file name: an Ascend kernel and its size."""

PICTURES = (*NETWORKS, *TIMELINES, *LAYER_GROUPS)


def main() -> None:
    """Write the pictures that are asked for, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "pictures")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or PICTURES:
        if name not in PICTURES:
            parser.error(f"unknown picture {name!r}; there are: {', '.join(PICTURES)}")
        if name in TIMELINES:
            drawn, summary = timelines(*TIMELINES[name])
        elif name in LAYER_GROUPS:
            drawn, summary = LAYER_GROUPS[name]()
        else:
            maps, labels = network_maps(*NETWORKS[name])
            drawn = draw_plans(maps, labels=labels)
            summary = "; ".join(f"{title}: {plan.peak:,} bytes" for title, _, plan in maps)
        drawn.save(arguments.folder / name)
        print(f"{name}: {summary}")


def network_maps(
    subject: str, workload: str, planners: Mapping[str, str]
) -> tuple[list[Map], dict[str, str]]:
    """Return the maps of the tensors of a network's one function, and what to call the tensors."""
    (scope,) = memory_map(workload, tuple(planners.values()), target="llvm").memories
    plans = []
    for title, placement in zip(planners, scope.plans, strict=True):
        check(placement.problem, placement.plan)
        if placement.planner == STOCK:
            lowered = lowering.capture_relax(workloads.model(workload), "llvm")
            check_against_stock_tensors(lowered, placement.plan)
        plans.append((f"{subject}, {title}", placement.problem, placement.plan))
    return plans, {name: note.label for name, note in scope.notes.items()}


def check_against_stock_tensors(lowered: tvm.IRModule, plan: Plan) -> None:
    """Raise ValueError unless a plan takes as many bytes as the stock plan of a network."""
    stock_mod = tvm.relax.transform.StaticPlanBlockMemory()(lowered)
    functions = [f for f in stock_mod.functions.values() if isinstance(f, tvm.relax.Function)]
    nbytes = sum(allocated_memory(func).nbytes for func in functions)
    if plan.peak != nbytes:
        raise ValueError(f"the stock plan takes {nbytes} bytes, and {plan.planner!r} {plan.peak}")


def timelines(name: str, parameters: Mapping[str, int]) -> tuple[Picture, str]:
    """Return the pipelines of an Ascend kernel under two plans, and their makespans in a line."""
    kernel = AscendOptions().read(workloads.ascend_kernel(name, **parameters).lower()[name])
    machine = Machine.from_target(Target("ascend/910b"))
    ways = {
        "levels of reuse": plan_levels,
        "lowest peak, whatever waits": lambda problem: plan_at_level(problem, 0),
    }
    runs = {
        f"{name}, {way}": simulate(kernel.program, [(p, plan(p)) for p in kernel.problems], machine)
        for way, plan in ways.items()
    }
    summary = "; ".join(f"{title}: {run.makespan:,} cycles" for title, run in runs.items())
    return pipeline_timelines(runs.items(), kernel.problems), summary


if __name__ == "__main__":
    main()
