# SPDX-License-Identifier: Apache-2.0
"""Random arguments for networks: what `tvm_ext.workloads` has, and what tests write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, tirx

LENGTH = 48
"""Elements of a symbolic dimension."""
VOCABULARY = 50
"""Token numbers are below it: no network of ours knows fewer."""


def entry_of(mod: tvm.IRModule) -> str:
    """Return the name of a module's one Relax function."""
    (name,) = (v.name_hint for v, f in mod.functions.items() if isinstance(f, relax.Function))
    return str(name)


def inputs_of(mod: tvm.IRModule, seed: int) -> list[npt.NDArray[Any]]:
    """Make random arguments of a module's one Relax function: the inputs, then every weight.

    Weights are scaled by their fan-in (He et al., 2015), so that activations stay finite.
    """
    function = mod[entry_of(mod)]
    rng = np.random.default_rng(seed)
    inputs = int(function.attrs["num_input"])
    made = []
    for at, param in enumerate(function.params):
        shape = [int(d) if isinstance(d, tirx.IntImm) else LENGTH for d in param.ty.shape]
        dtype = str(param.ty.dtype)
        if dtype.startswith("int"):
            made.append(rng.integers(VOCABULARY, size=shape, dtype=dtype))
        elif at < inputs:
            made.append(rng.standard_normal(shape, dtype=dtype))
        else:
            made.append(_weight(rng, shape))
    return made


def _weight(rng: np.random.Generator, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    fan_in = math.prod(shape[1:])
    if fan_in == 1:  # a bias, a scale, a shift, or a variance: above 0
        return rng.uniform(0.25, 1.0, shape).astype("float32")
    weight: npt.NDArray[np.float32] = rng.standard_normal(shape, dtype="float32")
    weight *= math.sqrt(2 / fan_in)
    return weight
