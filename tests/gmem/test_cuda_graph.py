# SPDX-License-Identifier: Apache-2.0
"""`RewriteCUDAGraph` keeps storages from call to call; a result must not be in one of those."""

from __future__ import annotations

import pytest
import tvm
from relax_programs import parse
from relax_runs import lower, planned
from tvm import relax

from tvm_ext.transform import GMEMAllocate

SOURCE = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32")):
        a = R.nn.relu(x)
        b = R.negative(a)
        c = R.abs(b)
        d = R.exp(c)
        e = R.negative(d)
        f = RESULT
        return f
"""


@pytest.mark.parametrize(
    "result", ["e", 'R.memory.view(e, R.shape([4096]), R.dtype("float32"), 0)']
)
def test_a_result_is_not_kept_from_one_call_to_the_next(result: str):
    lowered = lower(parse(SOURCE.replace("RESULT", result)), fuse=False)
    config = {"relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(config=config):
        ours = relax.transform.RewriteCUDAGraph()(planned(lowered, GMEMAllocate()))
    kept = ours["cuda_graph_alloc"].script()
    assert kept.count("R.memory.alloc_storage") >= 1
    main = ours["main"].script()
    # What is the result's own is allocated in each call.
    own = main.count("R.memory.alloc_storage") + main.count("R.builtin.alloc_tensor")
    assert own == 1, main
