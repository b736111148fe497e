# SPDX-License-Identifier: Apache-2.0
"""The tensors that a Relax function allocates, and which of them may share memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from passes.ir import IRModule, items, nodes_in, structural_equal, tir, unique_name
from passes.planning import Buffer, LiveRange, Problem, join_ranges
from passes.relax import rx
from passes.relax.facts import HOST, MAIN_DEVICE, SCOPE, Branches, BufferBindings, Path, TensorGroup
from passes.relax.sizes import Size, Sizes, UnknownSizeError, product

RETURNED = "returned"  # The reason to leave a returned tensor to the runtime
NO_BYTES = "it has no bytes"  # The reason to leave an empty tensor to the runtime
UNUSED = "nothing uses it"  # The reason to leave an unused tensor to the runtime
EXPECTED = (RETURNED, UNUSED, NO_BYTES)  # The reasons that are as they should be, in any order

_TEXTURE = "texture"  # Part of the names of scopes whose memory is not flat

UNCAPTURED = "which CUDA graphs do not capture"
"""The end of the reasons why a tensor is left to the runtime because of `RewriteCUDAGraph`."""


@dataclass(eq=False)
class AllocatedTensor:
    """One ``R.builtin.alloc_tensor``."""

    name: str  # That of the binding
    variable: Any  # The variable that it is bound to
    path: Path  # The branches that it stands in
    position: int  # That of the binding
    size: Size | None = None  # None where its shape is known at run time only
    device: int = MAIN_DEVICE  # The index of the device that its memory is on
    scope: str = SCOPE  # Of that memory
    dtype: str = "uint8"  # Of that memory's elements
    is_texture: bool = False
    is_dynamic: bool = False  # Whether its shape has symbolic dimensions
    is_hosts: bool = False  # Whether it is said to be on the host, which is one of the devices
    live: tuple[LiveRange, ...] = ()
    left: str | None = None  # The reason to leave it to the runtime; None if it is planned
    buffer: str = ""  # The buffer that stands for it; empty where its bytes are not known
    from_start: bool = False  # Whether something other than a kernel reads it
    touched: bool = False  # Whether anything has read or written it so far
    touched_at: list[int] = field(default_factory=list)  # The positions that do, ascending
    is_kept: bool = False  # Whether a tuple keeps its memory until the function ends
    # Positions of kernels that a CUDA graph may run before a branch that touches it.
    launched_at: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Its bytes for each of its unit, where its shape is known."""
        return 0 if self.size is None else self.size.count

    @property
    def constant_bytes(self) -> int | None:
        """Its bytes, or their upper bound, where they are known."""
        return None if self.size is None or self.size.factors else self.size.count


@dataclass(frozen=True)
class TensorValue:
    """The tensors that an expression may refer to, and its fields where it is a known tuple."""

    tensors: tuple[AllocatedTensor, ...] = ()
    fields: tuple[TensorValue, ...] | None = None

    def read_from_start(self) -> None:
        """Note that something other than a kernel reads what the expression refers to."""
        for tensor in self.tensors:
            tensor.from_start = True


NO_TENSORS = TensorValue()


def tuple_of(fields: Sequence[TensorValue]) -> TensorValue:
    """Return the value of a tuple of these fields."""
    return TensorValue(_tensors_of(fields), tuple(fields))


def either(first: TensorValue, second: TensorValue) -> TensorValue:
    """Return a value that is either of two."""
    one, other = first.fields, second.fields
    if one is not None and other is not None and len(one) == len(other):
        return tuple_of([either(a, b) for a, b in zip(one, other, strict=True)])
    return TensorValue(_tensors_of((first, second)))


def _tensors_of(values: Iterable[TensorValue]) -> tuple[AllocatedTensor, ...]:
    return tuple(dict.fromkeys(tensor for value in values for tensor in value.tensors))


def fill_in(
    tensor: AllocatedTensor, call: Any, mod: IRModule, sizes: Sizes, host: int | None
) -> None:
    """Note what the call that allocates a tensor says, or why the tensor cannot be planned.

    `host` is the device that is the host, if one is: TVM's virtual machine takes no other index.
    """
    shape, element, device, scope = items(call.args)
    dtype = element.value
    extents = shape.ty.values if isinstance(shape.ty, rx.ShapeType) else None
    if extents is None:
        tensor.left = "its shape is known at run time only"
        return
    tensor.is_dynamic = not all(isinstance(extent, tir.IntConstant) for extent in extents)
    try:
        tensor.size = sizes.of(extents, dtype)
    except UnknownSizeError as error:
        tensor.left = str(error)
    if tensor.variable is None:
        tensor.left = "it is not bound to a variable"
    elif not isinstance(scope, tir.StringConstant) or not isinstance(device, tir.IntConstant):
        tensor.left = f"its device, {device}, or its scope is known at run time only"
    elif tensor.size is not None and tensor.size.count == 0:
        tensor.left = NO_BYTES
    else:
        tensor.device, tensor.scope = int(device.value), str(scope.value)
        if tensor.device == HOST and host is not None:
            tensor.device, tensor.is_hosts = host, True
        _find_memory(tensor, mod, extents, dtype)


def _find_memory(tensor: AllocatedTensor, mod: IRModule, shape: Sequence[Any], dtype: Any) -> None:
    """Note the device and the scope of a tensor's memory, and its bytes where these differ.

    A texture on an Adreno is a view of plain memory, which has rows of a certain pitch. As TVM's
    `StaticPlanBlockMemory` does, we ask the device for both, by functions that its backend
    registers. The tensor is left where its scope is not known, or its bytes are no constant.
    """
    devices = mod.global_infos.get("vdevice", ())
    own = devices[tensor.device] if 0 <= tensor.device < len(devices) else None
    unknown = f"it is in scope {tensor.scope!r}, not in {SCOPE!r}"
    if own is None or str(own.memory_scope) == SCOPE:
        if _TEXTURE in tensor.scope:
            tensor.left = unknown
        elif tensor.scope != SCOPE:  # As memory that devices of one machine share
            tensor.dtype = str(dtype)
        return
    kind, tensor.is_texture = str(own.target.kind.name), tensor.scope != SCOPE
    size_of = rx.runtime_function(f"DeviceGetMemSize.{kind}")
    scope_of = rx.runtime_function(f"DeviceScopeCompatibility.{kind}")
    if size_of is not None:
        if not all(isinstance(extent, tir.IntConstant) for extent in shape):
            tensor.left = unknown
            return
        tensor.is_texture = True
        if tensor.size is not None:
            tensor.size = Size(int(size_of(list(shape), dtype, own)))
    if scope_of is not None:
        tensor.scope = str(scope_of(own.target, own.memory_scope))
    if tensor.scope == SCOPE:
        # All that is in the plain memory of one device can share it, by whichever index.
        same = same_device(mod, tensor.device)
        plain = (index for index in same if str(devices[index].memory_scope) == SCOPE)
        tensor.device = next(plain, same[0])
    else:
        tensor.dtype = str(dtype)


def same_device(mod: IRModule, device: int) -> list[int]:
    """Return the indices of a device in a module: it may have one for each of its memories."""
    devices = mod.global_infos.get("vdevice", ())
    if not 0 <= device < len(devices):
        return [device]
    own = devices[device]
    return [
        index
        for index, other in enumerate(devices)
        if other.vdevice_id == own.vdevice_id and structural_equal(other.target, own.target)
    ]


def on_one_path(branches: Iterable[tuple[LiveRange, LiveRange]], one: int, other: int) -> bool:
    """Return whether none of these `if`s has the two positions in different branches."""
    return not any(
        start <= one < middle <= other < stop or start <= other < middle <= one < stop
        for (start, middle), (_, stop) in branches
    )


def live_ranges(tensor: AllocatedTensor, branches: Branches) -> tuple[LiveRange, ...]:
    """Return where a tensor lives: between two touches on one path, both included.

    A position is live if the tensor is touched there, or before and after it, by bindings that are
    in no other branch of an `if` than the position.
    """
    touches = sorted({*tensor.touched_at, *tensor.launched_at})
    if not touches:
        return ()
    first, end = touches[0], touches[-1] + 1
    # The others make no difference, and are many.
    inside = [sides for sides in branches.values() if sides[0][0] < end and first < sides[1][1]]
    if not inside:
        return ((first, end),)

    borders = {border for sides in inside for side in sides for border in side}
    cuts = sorted({*touches, *(touch + 1 for touch in touches), *borders})
    return join_ranges(
        (begin, behind)
        for begin, behind in pairwise(cuts)
        if any(touch <= begin and on_one_path(inside, touch, begin) for touch in touches)
        and any(touch >= begin and on_one_path(inside, touch, begin) for touch in touches)
    )


def _are_equal(factors: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two units are equal: by their factors, or as TVM's analyzer proves."""
    if len(factors) == len(others) and all(map(structural_equal, factors, others)):
        return True
    has_both = bool(factors) and bool(others)
    return has_both and tir.Analyzer().can_prove_equal(product(factors), product(others))


def group_tensors(
    tensors: Sequence[AllocatedTensor],
    branches: Branches,
    end: int,
    known: set[int],
    empty: Problem,
    results_apart: bool,
    plans_results: bool,
) -> tuple[TensorGroup, ...]:
    """Make buffers of tensors, and group those that may share memory; the main group is first.

    A tensor that nothing touches is left to the runtime. `end` is the position after the last
    binding. `known` are the handles of the symbolic variables that have a value when the function
    begins. `empty` is the problem of a group without tensors. With `results_apart`, no other tensor
    may stand in the memory of a returned one of constant size. With `plans_results`, a storage is
    as large as its tensor may be, also that of a result.
    """
    units: list[list[Any]] = [[]]  # The factors of each; that of constant sizes has none
    taken = set[str]()  # The names of buffers
    # Tensors of one group are of one device, scope, type and unit; and in one branch, where their
    # unit is known in that branch alone.
    main = MAIN_DEVICE, SCOPE, "uint8", 0, None
    found: dict[tuple[Any, ...], tuple[list[AllocatedTensor], list[AllocatedTensor]]]
    found = {main: ([], [])}  # Of each group the tensors to plan, and those that are left
    for tensor in tensors:
        if tensor.size is None or tensor.left == NO_BYTES or tensor.variable is None:
            continue
        tensor.live = live_ranges(tensor, branches)
        if not tensor.live:
            tensor.left = tensor.left or UNUSED
            tensor.live = ((tensor.position, tensor.position + 1),)
        factors = sorted(tensor.size.factors, key=str)
        unit = next((n for n, own in enumerate(units) if _are_equal(own, factors)), len(units))
        if unit == len(units):
            units.append(factors)
        variables = (variable for factor in factors for variable in nodes_in(factor, tir.Var))
        depends = any(variable.__chandle__() not in known for variable in variables)
        key = tensor.device, tensor.scope, tensor.dtype, unit, tensor.path if depends else None
        tensor.buffer = unique_name(tensor.name, taken, "_")
        found.setdefault(key, ([], []))[tensor.left is not None].append(tensor)
    groups = []
    for (device, scope, dtype, unit, path), (own, left) in found.items():
        buffers = [Buffer(tensor.buffer, tensor.count, tensor.live) for tensor in own]
        buffers.sort(key=lambda buffer: buffer.live[0][0])
        # Other tensors may stand in a returned one before it begins, if its bytes are known.
        apart = path is not None or (results_apart and not unit)
        together = [
            tensor
            for tensor in left
            if tensor.left == RETURNED
            and not (apart or tensor.path)
            and (plans_results or not (tensor.size and tensor.size.bounds))
        ]
        alone = [tensor for tensor in left if tensor not in together]
        groups.append(
            TensorGroup(
                device,
                product(units[unit]) if unit else None,
                replace(empty, buffers=tuple(buffers)),
                tuple(_by_itself(tensor, end) for tensor in together),
                tuple(_by_itself(tensor, end) for tensor in alone),
                scope,
                dtype,
                any(tensor.is_texture for tensor in own),
                {
                    tensor.buffer: BufferBindings(
                        tensor.name,
                        () if tensor.left == RETURNED else tensor.path,
                        tensor.position,
                        tuple(dict.fromkeys(tensor.touched_at)),
                        tensor.is_kept,
                        tensor.left == RETURNED,
                        tensor.is_hosts
                        or (tensor.is_dynamic and (plans_results or tensor.left == UNUSED)),
                    )
                    for tensor in (*own, *left)
                },
            )
        )
    return tuple(groups)


def _by_itself(tensor: AllocatedTensor, end: int) -> Buffer:
    """Return the buffer of a tensor that is not planned: a returned one lives to the end."""
    begin = tensor.live[0][0]
    live = ((begin, end),) if tensor.left == RETURNED else tensor.live
    return Buffer(tensor.buffer, tensor.count, live)
