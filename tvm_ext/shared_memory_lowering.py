# SPDX-License-Identifier: Apache-2.0
"""TVM's passes between ``StorageRewrite`` and where the shared memory of GPU kernels is merged."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import Pass, PassContext, module_pass


@pass_instrument
class _Between:
    """Lets those passes of a pipeline run that stand behind one and in front of another.

    Lists of passes, whose names have no namespace, run in any case.
    """

    def __init__(self) -> None:
        self._runs = False

    def should_run(self, _mod: IRModule, info: Any) -> bool:
        """Whether a pass is one of these."""
        namespace, _, name = info.name.rpartition(".")
        if name in ("StorageRewrite", "MergeSharedMemoryAllocations"):
            self._runs = name == "StorageRewrite"
            return False
        return self._runs or not namespace


def up_to_shared_memory() -> Pass:
    """Return TVM's passes between ``StorageRewrite`` and ``MergeSharedMemoryAllocations``.

    They are those of TVM's own pipeline in the pass context in force, but for the one that refuses
    functions that use the memory of another device.
    """
    lower, _, _ = tirx.get_tir_pipeline("default")

    def run(mod: IRModule, ctx: PassContext) -> IRModule:
        with PassContext(
            opt_level=ctx.opt_level,
            required_pass=list(ctx.required_pass),
            disabled_pass=[*ctx.disabled_pass, "tirx.VerifyMemory"],
            instruments=[_Between()],
            config={**dict(ctx.config), "tirx.disable_storage_rewrite": False},
        ):
            return lower(mod)

    return module_pass(run, opt_level=0, name="tvm_ext.up_to_shared_memory")
