# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs on a CPU: what `RewriteCUDAGraph` makes, run as a GPU would run it.

`vm.builtin.cuda_graph.get_cached_alloc` makes the storages of all functions once. `run_or_capture`
records the kernels of a region with the tensors that they are given; from then on those kernels run
again on those very tensors, whatever the program would hand them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from gpu_counts import PREFIX, rewritten
from llvm_level import at_level
from relax_runs import flat
from tvm import relax
from tvm.ir.transform import Pass, Sequential

from tvm_ext.relax_passes import relax_stages


class GraphMachine:
    """A virtual machine whose regions are captured once, and replayed."""

    def __init__(self, lowered: tvm.IRModule, plan: Pass) -> None:
        behind = relax_stages("llvm").behind
        mod = rewritten(lowered, plan)
        executable = tvm.compile(mod, target=at_level("llvm"), relax_pipeline=Sequential(behind))
        self.machine = relax.VirtualMachine(executable.jit(), tvm.cpu())
        self.replays = 0
        self._kept: Any = None
        self._graphs: dict[tuple[int, ...], tuple[list[tuple[Any, tuple[Any, ...]]], Any]] = {}

    def run(self, name: str, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Call a function, and return its results, tuples flattened."""
        GraphMachine._current = self
        given = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return [tensor.numpy().copy() for tensor in flat(self.machine[name](*given))]

    _current: GraphMachine

    def kept(self, function: Any) -> Any:
        if self._kept is None:
            self._kept = self.machine.invoke_closure(function)
        return self._kept

    def run_or_capture(self, function: Any, arguments: Any, key: tuple[int, ...]) -> Any:
        if key in self._graphs:
            launched, result = self._graphs[key]
            for kernel, given in launched:
                kernel(*given)
            self.replays += 1
            return result
        launched = []

        def note(kernel: Any, name: str, before: bool, _result: Any, *given: Any) -> None:
            if before and not name.startswith("vm.builtin"):
                launched.append((kernel, given))

        self.machine.set_instrument(note)
        result = self.machine.invoke_closure(function, *arguments)
        self.machine.set_instrument(lambda *_: None)
        self._graphs[key] = launched, result
        return result


@tvm.register_global_func(f"{PREFIX}get_cached_alloc", override=True)
def _get_cached_alloc(_context: Any, function: Any, _index: int) -> Any:
    return GraphMachine._current.kept(function)


@tvm.register_global_func(f"{PREFIX}run_or_capture", override=True)
def _run_or_capture(
    _context: Any, function: Any, arguments: Any, index: int, shape: Any = ()
) -> Any:
    key = (int(index), *map(int, shape))
    return GraphMachine._current.run_or_capture(function, arguments, key)
