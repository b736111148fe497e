# SPDX-License-Identifier: Apache-2.0
"""A corpus of functions as storage planning meets them: each workload, target and option set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_ext.lowering import capture, known_target

from .families import WORKLOADS, Workload

#: How Relax names the functions it makes to compute symbolic shapes on the host. They have no
#: buffers, and TVM orders their statements differently in each process.
_SHAPE_FUNCTION = "shape_func"


@dataclass(frozen=True)
class Entry:
    """One function right before ``StorageRewrite``."""

    name: str  # Unique and readable: "softmax_variants[llvm,fast_64x128]"
    target: str  # The target's name, as `tvm_ext.lowering.known_target` takes it
    config: Mapping[str, Any]  # Options that it was lowered with, to run the pass with as well
    mod: tvm.IRModule  # A module with this one function


def entries(
    names: Iterable[str] | None = None, *, every_target: bool = True, step: int = 1
) -> list[Entry]:
    """Lower workloads for each of their targets and option sets, and split them into functions.

    Of functions that are structurally equal but for their name, and are to be run with the same
    options, the first is kept. The order is that of the table of workloads, in every process.

    Parameters
    ----------
    names : iterable of str, optional
        The workloads to take; by default all.
    every_target : bool
        Whether all is lowered for each of its targets. Otherwise a network is for the first alone,
        since its operators are in the families too; and a family for the first and one of the
        others, which differs from family to family.
    step : int
        How many functions of a family there are for each that is taken.
    """
    found: list[Entry] = []
    seen: dict[tuple[int, str], list[tirx.PrimFunc]] = {}
    for name in WORKLOADS if names is None else names:
        for entry in _entries(WORKLOADS[name], every_target, step):
            ((_, function),) = entry.mod.functions.items()
            function = function.without_attr("global_symbol")
            # Thread variables count as free: a launch names them without defining them.
            key = (tvm_ffi.structural_hash(function, map_free_vars=True), repr(entry.config))
            same_hash = seen.setdefault(key, [])
            if any(tvm_ffi.structural_equal(function, f, map_free_vars=True) for f in same_hash):
                continue
            same_hash.append(function)
            found.append(entry)
    return found


def load(name: str) -> tvm.IRModule:
    """Lower a workload for its first target, with its first options, as one module."""
    workload = WORKLOADS[name]
    return _lowered(workload, known_target(workload.targets[0]), workload.configs[0])


def _lowered(
    workload: Workload, target: Target, config: Mapping[str, Any], step: int = 1
) -> tvm.IRModule:
    with tvm.transform.PassContext(config=dict(config)):
        return capture(workload.build(target, step), target)


def _fewer_targets(workload: Workload) -> Sequence[str]:
    first, *others = workload.targets
    if workload.kind == "model" or not others:
        return [first]
    return [first, others[list(WORKLOADS).index(workload.name) % len(others)]]


def _entries(workload: Workload, every_target: bool, step: int) -> Iterator[Entry]:
    for name in workload.targets if every_target else _fewer_targets(workload):
        for config in workload.configs:
            lowered = _lowered(workload, known_target(name), config, step)
            options = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in config.items()]
            for variable in sorted(lowered.get_global_vars(), key=lambda v: v.name_hint):
                if workload.kind == "model" and variable.name_hint.startswith(_SHAPE_FUNCTION):
                    continue
                parts = ",".join([name, variable.name_hint, *options])
                mod = tvm.IRModule({variable: lowered[variable]})
                yield Entry(f"{workload.name}[{parts}]", name, config, mod)
