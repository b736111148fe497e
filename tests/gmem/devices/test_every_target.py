# SPDX-License-Identifier: Apache-2.0
"""`relax_pipeline` for every target that TVM builds networks for: its passes, but for planning."""

from __future__ import annotations

import pytest
import tvm
from relax_programs import parse
from tvm import relax
from tvm.ir.instrument import pass_instrument
from tvm.target import Target

import tvm_ext

TARGETS = {
    "llvm": "llvm",
    "cuda": {"kind": "cuda", "arch": "sm_61"},
    "rocm": {"kind": "rocm", "mcpu": "gfx1030"},
    "vulkan": "vulkan",
    "opencl": "opencl",
    "metal": "metal",
    "webgpu": "webgpu",
    "adreno": "qcom/adreno-opencl",
    "adreno with textures": "qcom/adreno-opencl-texture",
    "adreno by vulkan": "qcom/adreno-vulkan",
    "hexagon": "hexagon",
    "c": "c",
}

NETWORK = """
@R.function
def main(x: R.Tensor((4, 8, 8), "float32")):
    with R.dataflow():
        a = R.nn.relu(x)
        b = R.nn.softmax(a, axis=2)
        c = R.concat((b, a), axis=1)
        d = R.sum(c, axis=[1])
        R.output(d)
    return d
"""


@pass_instrument
class Listed:
    """The passes that stand in a pipeline's own list: those within others are left out."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.depth = 0

    def run_before_pass(self, _mod: tvm.IRModule, info: object) -> None:
        self.depth += 1
        if self.depth == 3:  # The pipeline is a pass, which runs a sequence.
            self.names.append(str(info.name))

    def run_after_pass(self, _mod: tvm.IRModule, _info: object) -> None:
        self.depth -= 1


def names_of(pipeline: tvm.ir.transform.Pass) -> list[str]:
    """Run a pipeline without a current target, and return the names of its passes."""
    listed = Listed()
    with tvm.transform.PassContext(opt_level=3, instruments=[listed]):
        pipeline(parse(NETWORK))
    return listed.names


@pytest.mark.parametrize("name", TARGETS)
def test_the_passes_are_those_of_tvm_but_for_planning(name: str):
    assert Target.current(allow_none=True) is None
    target = Target(TARGETS[name])
    ours = names_of(tvm_ext.relax_pipeline(target))
    assert ours.count("tvm_ext.GMEMAllocate") == 1
    own = {
        "hexagon": lambda: relax.get_pipeline("default"),
        "c": lambda: relax.get_default_pipeline(Target("llvm")),
    }
    with target:  # TVM's list for Adreno asks which target is current.
        stock = own.get(name, lambda: relax.get_default_pipeline(target))()
        expected = names_of_within(target, stock)
    if name == "hexagon":
        expected.remove("RewriteCUDAGraph")  # It captures kernels of CUDA, and there are none.
    # TVM's allocators for a CPU take one scope alone: other memories' scopes go behind the plan.
    ours = [n for n in ours if n != "tvm_ext.HostScopes"]
    assert [n.replace("tvm_ext.GMEMAllocate", "StaticPlanBlockMemory") for n in ours] == expected


def names_of_within(target: Target, pipeline: tvm.ir.transform.Pass) -> list[str]:
    with target:
        return names_of(pipeline)


@pytest.mark.parametrize("name", ["c", "hexagon"])
def test_what_tvms_dispatch_leaves_out_is_compared(name: str):
    report = tvm_ext.compare(parse(NETWORK), target=name, view="rewrite")
    assert report.facts
    assert report.is_right
