# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision, planned by ExecuTorch's own algorithm and by ours.

    python benchmarks/executorch_models.py [--models NAME,NAME...] [--write]

Each is exported with the portable kernels, written with both plans, and run with both: the bits
must be equal. Needs ExecuTorch, PyTorch and torchvision. ``--write`` puts the table into
docs/hosts.md.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from pathlib import Path
from typing import Any

import test_libraries  # noqa: F401 - lets the next ones be found
import torch
from export_networks import torchvision_library
from marked_lines import with_lines

PAGE = Path(__file__).parents[1] / "docs" / "hosts.md"
MODELS = (
    "resnet50",
    "convnext_tiny",
    "inception_v3",
    "mobilenet_v3_small",
    "densenet121",
    "mobilenet_v2",
    "resnet18",
    "squeezenet1_1",
    "regnet_y_400mf",
    "shufflenet_v2_x1_0",
)


def measured(name: str, models: Any) -> str:
    """Plan and run one model in both ways; return its row."""
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.runtime import Runtime

    from tvm_ext.hosts.executorch import memory_planning_pass
    from tvm_ext.hosts.executorch.read_program import read_program

    torch.manual_seed(0)
    size = 299 if name.startswith("inception") else 224
    model, image = getattr(models, name)(weights=None).eval(), torch.randn(1, 3, size, size)
    program = torch.export.export(model, (image,))
    nbytes, results, tensors = [], [], 0
    for planning in (MemoryPlanningPass(), memory_planning_pass()):
        edge = to_edge(copy.deepcopy(program))
        begin = time.process_time()
        made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
        seconds = time.process_time() - begin
        nbytes.append(made.executorch_program.execution_plan[0].non_const_buffer_sizes[1])
        method = Runtime.get().load_program(made.buffer).load_method("forward")
        results.append(method.execute([image])[0].clone())
        print(f"  {name}: {nbytes[-1]:,} bytes, {seconds:.1f} s to write", flush=True)
        path = Path("/tmp") / f"{name}.pte"
        path.write_bytes(made.buffer)
        tensors = sum(len(arena.problem.buffers) for arena in read_program(path))
        path.unlink()
    assert torch.equal(*results), f"{name}: the results differ"
    greedy, ours = nbytes
    return f"| {name} | {tensors} | {greedy:,} | {ours:,} | {1 - ours / greedy:.1%} |"


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    models = torchvision_library().models
    rows = ["| model | tensors | greedy | ours | saved |", "|---|---:|---:|---:|---:|"]
    rows += [measured(name, models) for name in arguments.models.split(",")]
    print("\n".join(rows))
    if arguments.write:
        PAGE.write_text(with_lines(PAGE.read_text(), "executorch", rows))


if __name__ == "__main__":
    main()
