# SPDX-License-Identifier: Apache-2.0
"""Every form in which a plan stands in what is built, and what each refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from address_runs import at_addresses, in_place_of_storage_rewrite
from tvm.ir.transform import PassContext

import tvm_ext
from tvm_ext.transform import PlanAddresses

CHIP = "ascend/910b-llvm"

Within = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Form:
    """How memory is planned while a kernel is built."""

    within: Within = nullcontext
    pipeline: str | None = None  # By name
    mirrors: bool = False  # Whether it is TVM's own plan, so that no more is asked of it
    target: str | None = None  # The only one that it is for, in the place of LLVM's own
    on_gpus: bool = True  # Whether it says something there


def _without_reuse() -> AbstractContextManager[Any]:
    return PassContext(config={"tirx.disable_storage_rewrite": True})


ascend = partial(tvm_ext.use, "AscendPlanMemory", target=CHIP)

APART = Form(_without_reuse)
"""Each buffer has memory of its own: whether a kernel can be built and is right."""

STOCK = Form()

FORMS: dict[str, Form] = {
    "mirror": Form(partial(tvm_ext.use, "StorageRewrite"), mirrors=True),
    "sound": Form(partial(tvm_ext.use, "StorageRewrite", sound=True)),
    "address": Form(
        lambda: in_place_of_storage_rewrite(at_addresses(PlanAddresses())), on_gpus=False
    ),
    "address, dropped": Form(partial(tvm_ext.use, "PlanAddresses", form="address")),
    "arena": Form(partial(tvm_ext.use, "PlanAddresses", form="arena")),
    "shared memory": Form(partial(tvm_ext.use, "PlanSharedMemory"), mirrors=True),
    "pipeline": Form(pipeline="tvm_ext", mirrors=True),
    "pipeline, address": Form(pipeline="tvm_ext.address"),
    "pipeline, arena": Form(pipeline="tvm_ext.arena"),
    "pipeline, Ascend": Form(pipeline="tvm_ext.ascend", target=CHIP, on_gpus=False),
    "Ascend": Form(ascend, on_gpus=False),
    "Ascend, mirrored search": Form(partial(ascend, search="mirror"), on_gpus=False),
    "Ascend, address": Form(partial(ascend, form="address"), on_gpus=False),
}


REFUSALS: tuple[tuple[str, str, str], ...] = (
    # TVM's lowering for kernels written with blocks leaves operators on tiles as they are.
    ("", "region", "belongs to no statement of the scope in which it is allocated"),
)
"""What is refused on purpose: how the form and the way begin, and what the sentence says."""


def is_known(form: str, way: str, refusal: str) -> bool:
    """Whether a refusal is one that the table knows."""
    return any(
        form.startswith(forms) and way.startswith(ways) and re.search(sentence, refusal)
        for forms, ways, sentence in REFUSALS
    )
