# SPDX-License-Identifier: Apache-2.0
"""The attribute `tvm_ext.gmem`, the plan that reports show, and the IR say one placement."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import tvm
from relax_programs import parse
from relax_runs import lower
from tvm import relax

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem, write_function
from tvm_ext import workloads
from tvm_ext.lowering import capture_relax, known_target

BRANCHES = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((64, 8), "float32"), c: R.Tensor((), "bool")):
        a = R.nn.relu(x)
        b = R.concat((a, x), axis=0)
        if c:
            d = R.exp(b)
            e = R.sum(d)
        else:
            d = R.concat((b, b), axis=0)
            e = R.max(d)
        return R.add(R.sum(a), e)
"""


def written(func: relax.Function, buffer_of: Mapping[int, str]) -> list[tuple[int, dict[str, int]]]:
    """Return the storages of the IR: bytes, and the offset of each buffer in it."""
    storages: dict[int, tuple[int, dict[str, int]]] = {}
    placed: dict[int, tuple[dict[str, int], int]] = {}

    def read(body: relax.Expr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                value, handle = binding.value, binding.var.__chandle__()
                if isinstance(value, relax.If):
                    read(value.true_branch)
                    read(value.false_branch)
                operator = getattr(getattr(value, "op", None), "name", "")
                if operator == "relax.memory.alloc_storage":
                    storages[handle] = int(value.args[0].values[0]), {}
                elif operator == "relax.memory.alloc_tensor":
                    placed[handle] = storages[value.args[0].__chandle__()][1], int(value.args[1])
                elif operator == "relax.memory.ensure_zero_offset":
                    placed[handle] = placed.pop(value.args[0].__chandle__())

    read(func.body)
    for handle, (tensors, offset) in placed.items():
        assert tensors.setdefault(buffer_of[handle], offset) == offset
    return list(storages.values())


def check_attribute(lowered: tvm.IRModule, options: GMEMOptions) -> None:
    for found in plan_gmem(lowered, options=options):
        func = write_function(found)
        said = func.attrs["tvm_ext.gmem"]
        there = written(func, found.memory.buffer_of)
        storages = [
            (int(one["bytes"]), {str(t["name"]): int(t["offset"]) for t in one["tensors"]})
            for one in said["storages"]
        ]
        assert sorted(map(plain, storages)) == sorted(map(plain, there))
        region = said["activations"]
        addresses = {
            str(t["name"]): int(t["address"]) - int(region["start"]) for t in region["tensors"]
        }
        if len(there) == 1:
            assert there == [(int(region["bytes"]), addresses)]
        else:
            assert not addresses, "several storages have no common start"
        # The plan that maps and tables show has the same storages, one after the other.
        for _, tensors in there:
            inside = [name for name in tensors if name in found.problem.index]
            starts = {found.plan.offsets[name][0] - tensors[name] for name in inside}
            assert len(starts) <= 1


def plain(storage: tuple[int, dict[str, int]]) -> tuple[int, list[tuple[str, int]]]:
    return storage[0], sorted(storage[1].items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llvm", "opencl"])
@pytest.mark.parametrize("name", ["squeezenet", "swin_t"])
def test_networks(name: str, kind: str):
    target = known_target(kind)
    check_attribute(capture_relax(workloads.model(name), target), GMEMOptions(target=target))


@pytest.mark.parametrize("kind", ["llvm", "opencl"])
def test_branches(kind: str):
    check_attribute(lower(parse(BRANCHES), fuse=False), GMEMOptions(target=known_target(kind)))
