# SPDX-License-Identifier: Apache-2.0
"""Memory that other runtimes take for the same network, beside our plans of its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from passes.ir import first_line
from tvm_ext.hosts import quiet
from tvm_ext.reading.input_sizes import InputSizes
from tvm_ext.reading.networks import EXPORTED, missing
from tvm_ext.reading.onnx_files import ONNX, open_model, shape_hint

Memory = tuple[dict[str, str | int], str]
"""The memory of a runtime: its version and numbers of bytes by name, and a line that says them."""


def onnxruntime_memory(what: str, sizes: InputSizes) -> Memory:
    """Run an ONNX file once on zeros, and read what its arena takes off onnxruntime's profile.

    ``peak`` are the most bytes in use at once, ``held`` those that the arena has taken from the
    system. Raises ImportError without onnxruntime; ValueError when it cannot run the file.
    """
    path = Path(what)
    if path.suffix != ONNX:
        raise ValueError(f"{what}: onnxruntime runs ONNX networks, whose names end in {ONNX}")
    try:
        import numpy as np
        import onnxruntime
    except ImportError as error:
        raise ImportError(missing(path, "onnxruntime", "onnx")) from error
    model = open_model(path, sizes)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    with TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            graph, providers = model.SerializeToString(), ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(graph, options, providers=providers)
            given = {}
            for one in session.get_inputs():
                element = one.type.removeprefix("tensor(").rstrip(")")
                numpy_type = "float32" if element == "float" else element  # Of numpy, it has 64.
                given[one.name] = np.zeros(_shape(path, one), numpy_type)
            session.run(None, given)
            profile = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except ValueError:
            raise
        except Exception as error:  # onnxruntime raises whatever it stumbles on
            text = " ".join(str(error).split())
            raise ValueError(f"{path}: onnxruntime does not run it: {text}") from error
    version = onnxruntime.__version__
    nodes = [event["args"] for event in profile if event.get("cat") == "Node"]
    peaks = [int(args["mem_in_use_peak"]) for args in nodes if "mem_in_use_peak" in args]
    if not peaks:
        lacks = f"the profile of onnxruntime {version} says nothing of memory"
        raise ValueError(f"{path}: {lacks}, as that of a newer one does")
    peak, held = max(peaks), max(int(args.get("mem_arena_held", 0)) for args in nodes)
    return {"version": version, "peak": peak, "held": held}, (
        f"onnxruntime {version}: {peak:,} bytes in use at most, {held:,} held by its arena; "
        "results and working memory of kernels are counted, inputs and weights not"
    )


def _shape(path: Path, given: Any) -> list[int]:
    shape = list(given.shape)
    if all(isinstance(size, int) and size > 0 for size in shape):
        return shape
    raise ValueError(
        f"{path}: onnxruntime needs all sizes of input {given.name!r}: "
        f"{shape_hint(given.name, given.shape)}, a number for each N"
    )


@quiet()
def executorch_memory(what: str, sizes: InputSizes) -> Memory:
    """Have ExecuTorch plan the memory of a program that ``torch.export.save`` wrote.

    ``nbytes`` are those of its arenas, with the tensors between operators as in our plans. Raises
    ImportError without ExecuTorch; ValueError when it does not take the file, or sizes are given.
    """
    path = Path(what)
    if path.suffix != EXPORTED:
        raise ValueError(f"{what}: ExecuTorch plans programs of PyTorch, whose names end in .pt2")
    if not path.is_file():
        raise ValueError(f"{what}: no such file")
    if sizes:
        raise ValueError(f"{what}: ExecuTorch plans for the sizes in the file; give no others")
    try:
        import torch
        from executorch import version
        from executorch.exir import ExecutorchBackendConfig, to_edge
        from executorch.exir.passes import MemoryPlanningPass
    except ImportError as error:
        raise ImportError(
            f"{what}: --executorch needs the package executorch: pip install executorch"
        ) from error
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    try:
        edge = to_edge(torch.export.load(str(path)))
        made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    except Exception as error:  # ExecuTorch raises whatever it stumbles on
        raise ValueError(f"{path}: ExecuTorch does not take it: {first_line(error)}") from error
    methods = made.executorch_program.execution_plan
    nbytes = sum(size for method in methods for size in method.non_const_buffer_sizes)
    return {"version": version.__version__, "nbytes": nbytes}, (
        f"executorch {version.__version__}: its own planner takes {nbytes:,} bytes for the "
        "operators as PyTorch exported them, not fused; inputs, results and weights are not "
        "counted"
    )
