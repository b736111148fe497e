# SPDX-License-Identifier: Apache-2.0
"""Chips as TVM targets, with their memories in ``feature.memory``, pipes in ``feature.machine``.

Importing this module registers the chips of `target_hw.ascend`, `target_hw.sophgo` and
`target_hw.microcontroller`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tvm.target import Target, register_tag

from target_hw import ascend, microcontroller, sophgo
from target_hw.machine import Machine
from target_hw.memory import MemoryHierarchy

TWIN_SUFFIX = "-llvm"
"""The suffix of a chip's tag for the twin that runs on the CPU."""

_FEATURE = "feature.memory"
_MACHINE = "feature.machine"


def register_chip(
    name: str,
    memory: MemoryHierarchy,
    *,
    machine: Machine | None = None,
    kind: str = "ext_dev",
    keys: Sequence[str] = ("npu",),
    override: bool = False,
) -> tuple[Target, Target]:
    """Add a chip: a target tag, and a twin of it that TVM builds and runs on the CPU.

    Parameters
    ----------
    name : str
        The tag, ``vendor/chip``. The twin's is ``vendor/chip-llvm``.
    memory : MemoryHierarchy
        The chip's memories; both targets carry them.
    machine : Machine, optional
        The chip's pipelines, for simulations; both targets carry them.
    kind : str
        TVM's target kind for the chip. The default stands for a device whose code generator is
        not in TVM. The twin's is ``llvm``.
    keys : sequence of str
        The chip's dispatch keys. The twin has them too, and ``cpu``.
    override : bool
        Whether the chip may take the place of a registered one. To register the same chip again
        is no error.

    Returns
    -------
    tuple of tvm.target.Target
        The chip and its twin, as ``Target(name)`` and ``Target(name + "-llvm")`` give them.

    Raises
    ------
    TypeError, ValueError
        When an argument is of a wrong type, impossible or taken. Then neither tag is registered.
    """
    _check_chip(name, memory, machine, kind, keys)
    described: dict[str, Any] = {_FEATURE: memory.to_feature(), "model": name}
    if machine is not None:
        described[_MACHINE] = machine.to_feature()
    configs = {
        name: {"kind": kind, "keys": list(keys), **described},
        name + TWIN_SUFFIX: {"kind": "llvm", "keys": [*keys, "cpu"], **described},
    }
    # TVM keeps a tag whose config makes no target, so they are made before either is registered.
    targets = {tag: Target(config) for tag, config in configs.items()}
    for tag, target in targets.items():
        try:
            known = Target(tag)
        except ValueError:
            continue
        if str(known) != str(target) and not override:
            raise ValueError(f"chip {name!r}: the tag {tag!r} is taken; override=True replaces it")
    for tag, config in configs.items():
        register_tag(tag, config, override=True)
    return targets[name], targets[name + TWIN_SUFFIX]


def with_machine(target: Target | str | dict[str, Any], machine: Machine) -> Target:
    """Return a copy of a target that carries the pipelines of a machine and no others.

    All else is as in `with_memory`; TypeError is raised when `machine` is not a `Machine`.
    """
    return _with_feature("with_machine", target, _MACHINE, Machine, machine)


def with_memory(target: Target | str | dict[str, Any], memory: MemoryHierarchy) -> Target:
    """Return a copy of a target that carries the memories of `memory` and no others.

    The copy has all options spelled out: its JSON does not refer to a tag. TypeError is raised when
    `memory` is not a `MemoryHierarchy`.
    """
    return _with_feature("with_memory", target, _FEATURE, MemoryHierarchy, memory)


def _with_feature(caller: str, target: Any, name: str, kind: type[Any], feature: Any) -> Target:
    if not isinstance(feature, kind):
        raise TypeError(f"{caller}: needs a {kind.__name__}, got {feature!r}")
    config = dict(Target(target).export())
    config.pop("tag", None)  # With a tag, reading the copy back would need that tag.
    return Target({**config, name: feature.to_feature()})


def _check_chip(name: str, memory: object, machine: object, kind: str, keys: object) -> None:
    if not isinstance(memory, MemoryHierarchy):
        raise TypeError(f"chip {name!r}: needs a MemoryHierarchy, got {memory!r}")
    if machine is not None and not isinstance(machine, Machine):
        raise TypeError(f"chip {name!r}: needs a Machine, got {machine!r}")
    is_tag = isinstance(name, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)+", name, re.ASCII)
    if not is_tag or name.endswith(TWIN_SUFFIX):
        raise ValueError(
            f"chip {name!r}: the name must be 'vendor/chip', of letters, digits and any of _.-, "
            f"and must not end with {TWIN_SUFFIX!r}"
        )
    if kind not in Target.list_kinds():
        raise ValueError(f"chip {name!r}: TVM has no target kind {kind!r}")
    if not memory:
        raise ValueError(f"chip {name!r}: no memory is described")
    names = keys if isinstance(keys, Sequence) and not isinstance(keys, str) else (None,)
    if not all(isinstance(key, str) and key for key in names):
        raise ValueError(f"chip {name!r}: keys must be a list of names, got {keys!r}")


for _chips, _machines, _vendor in (
    (ascend.CHIPS, ascend.MACHINES, "ascend"),
    (sophgo.CHIPS, sophgo.MACHINES, "sophgo"),
    (microcontroller.CHIPS, microcontroller.MACHINES, "st"),
):
    for _name, _memory in _chips.items():
        register_chip(_name, _memory, machine=_machines.get(_name), keys=("npu", _vendor))
