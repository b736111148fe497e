# SPDX-License-Identifier: Apache-2.0
"""In which form a device takes a plan: tensors at offsets, or each at the start of a whole slot.

Kernels built by TVM take no offset, so the virtual machine makes the offset a part of the pointer
where it can, and copies the tensor to memory of its own where it cannot
(`vm.builtin.ensure_zero_offset` in TVM's ``src/runtime/vm/builtin.cc``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from passes.relax import SCOPE
from target_hw.memory import MemoryHierarchy, MemoryScope

OFFSETS_FACT = "offsets"
"""What a target says of its ``global`` memory in ``feature.memory``, under ``facts``: 1 where a
tensor at an offset is free, 0 where it would be copied."""


@dataclass(frozen=True)
class Form:
    """Whether tensors may stand at offsets other than 0, and why."""

    offsets: bool
    reason: str  # In a few words
    most: int | None = None  # Bytes of a piece with offsets, at most

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{'offsets' if self.offsets else 'whole slots'}: {self.reason}"


_CPU = Form(True, "on a CPU a tensor at an offset is a pointer")

_BY_KIND = {
    "llvm": _CPU,
    "c": _CPU,
    "cuda": Form(True, "TVM's run time for CUDA adds an offset to a pointer"),
    "hexagon": Form(True, "the virtual machine folds an offset into a pointer on Hexagon"),
    "ext_dev": Form(True, "a chip of its own takes addresses"),
    "rocm": Form(False, "TVM's run time for ROCm adds nothing to pointers"),
    "opencl": Form(False, "a cl_mem is no pointer"),
    "vulkan": Form(False, "a VkBuffer is no pointer"),
    "metal": Form(False, "an MTLBuffer is no pointer"),
    "webgpu": Form(False, "a GPUBuffer is no pointer"),
}
"""By kind of target; the reasons are ``SupportsDevicePointerArithmeticsOnHost`` of TVM's devices,
and ``StorageObj::AllocTensor`` for Hexagon."""

IN_KERNELS = "kernel"  # What a user says for offsets that kernels add to their indices
LEAST_BINDING = 1 << 27  # Bytes of a buffer that Vulkan and WebGPU let a kernel see at least

TEXTURES = Form(False, "textures take no offset")


def form_for(target: Target | None, offsets: bool | str | None) -> Form:
    """Return the form for tensors of a target; `offsets` is what the user says, if anything."""
    if offsets == IN_KERNELS:
        return _in_kernels(target)
    if offsets is not None:
        return Form(bool(offsets), "as asked for")
    if target is None:
        return _CPU
    described = described_memory(target)
    facts = {} if described is None else dict(described.facts)
    if OFFSETS_FACT in facts:
        return Form(bool(facts[OFFSETS_FACT]), "the target's description says so")
    kind = str(target.kind.name)
    return _BY_KIND.get(kind, Form(False, f"nothing is known of targets of kind {kind!r}"))


def described_memory(target: Target | None) -> MemoryScope | None:
    """Return what a target says of its global memory, if it says anything."""
    if target is None or target.features.memory is None:
        return None
    memories = MemoryHierarchy.from_target(target)
    if SCOPE not in memories:
        return None
    return memories[SCOPE]


def _in_kernels(target: Target | None) -> Form:
    kind = "llvm" if target is None else str(target.kind.name)
    if kind == "webgpu":
        raise ValueError(
            "offsets='kernel' is not possible for webgpu: a kernel binds whole buffers, and none "
            "may be both read and written in one dispatch"
        )
    if kind not in _BY_KIND or kind == "ext_dev":  # Kernels of a chip of its own are not ours.
        return Form(False, f"nothing is known of kernels for targets of kind {kind!r}")
    most = None
    if target is not None and not _BY_KIND[kind].offsets:
        most = int(target.attrs.get("max_storage_buffer_range", LEAST_BINDING))
    return Form(True, "kernels add them to their indices", most)
