# SPDX-License-Identifier: Apache-2.0
"""What other runtimes take for the same network, beside our plans of its tensors."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from passes.ir import first_line
from tvm_ext.reading.input_sizes import InputSizes
from tvm_ext.reading.network_files import EXPORTED, ONNX, missing, open_model, shape_hint


@dataclass(frozen=True)
class OnnxRuntimeMemory:
    """What the arena of onnxruntime's CPU provider takes in one run, in bytes.

    Results and the kernels' working memory are in it; inputs and weights are not.
    """

    version: str  # Of onnxruntime
    peak: int  # The most bytes in use at once
    held: int  # What the arena has taken from the system at the end

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"onnxruntime {self.version}: {self.peak:,} bytes in use at most, "
            f"{self.held:,} held by its arena; results and working memory of kernels are counted, "
            "inputs and weights not"
        )


def onnxruntime_memory(what: str, sizes: InputSizes) -> OnnxRuntimeMemory:
    """Run an ONNX file once on zeros, and read what memory that took off onnxruntime's profile.

    Raises ImportError when onnxruntime is not there, ValueError when the file is no ONNX network,
    the size of an input is open, onnxruntime cannot run it, or its profile says nothing of memory.
    """
    path = Path(what)
    if path.suffix != ONNX:
        raise ValueError(f"{what}: onnxruntime runs ONNX networks, whose names end in {ONNX}")
    try:
        import numpy as np
        import onnxruntime
    except ImportError as error:
        raise ImportError(missing(path, "onnxruntime", "onnx")) from error
    model = open_model(path, sizes.shapes)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    with TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
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
    nodes = [event["args"] for event in profile if event.get("cat") == "Node"]
    peaks = [int(args["mem_in_use_peak"]) for args in nodes if "mem_in_use_peak" in args]
    if not peaks:
        version = onnxruntime.__version__
        raise ValueError(f"{path}: the profile of onnxruntime {version} says nothing of memory")
    held = max(int(args.get("mem_arena_held", 0)) for args in nodes)
    return OnnxRuntimeMemory(onnxruntime.__version__, max(peaks), held)


def _shape(path: Path, given: Any) -> list[int]:
    if all(isinstance(size, int) and size > 0 for size in given.shape):
        return list(given.shape)
    raise ValueError(
        f"{path}: onnxruntime needs all sizes of input {given.name!r}: "
        f"{shape_hint(given.name, given.shape)}, a number for each N"
    )


@dataclass(frozen=True)
class ExecuTorchMemory:
    """What ExecuTorch plans for a program that PyTorch exported, in bytes of its arenas.

    As in our plans, the tensors between operators are in it; inputs, results and weights are not.
    """

    version: str  # Of ExecuTorch
    nbytes: int

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"executorch {self.version}: its own planner takes {self.nbytes:,} bytes for the "
            "operators as PyTorch exported them, not fused; inputs, results and weights are not "
            "counted"
        )


def executorch_memory(what: str, sizes: InputSizes) -> ExecuTorchMemory:
    """Have ExecuTorch plan the memory of a program that ``torch.export.save`` wrote.

    Raises ImportError when ExecuTorch is not there, ValueError when the file is no such program,
    ExecuTorch does not take it, or sizes are given: it plans for the bounds that the file has.
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            edge = to_edge(torch.export.load(str(path)))
            made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
        except Exception as error:  # ExecuTorch raises whatever it stumbles on
            raise ValueError(f"{path}: ExecuTorch does not take it: {first_line(error)}") from error
    methods = made.executorch_program.execution_plan
    nbytes = sum(size for method in methods for size in method.non_const_buffer_sizes)
    return ExecuTorchMemory(version.__version__, nbytes)
