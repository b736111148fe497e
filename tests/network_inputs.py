# SPDX-License-Identifier: Apache-2.0
"""Random arguments for the networks of `tvm_ext.workloads`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_ext.workloads import Model

LENGTH = 48
"""Elements of a symbolic dimension."""


def inputs_of(model: Model, seed: int) -> list[npt.NDArray[Any]]:
    """Make random arguments of ``forward``: the input, then every weight.

    Weights are scaled by their fan-in (He et al., 2015), so that activations stay finite. An input
    of rank 2 is token numbers; the size of the vocabulary is the last argument of the network.
    """
    rng = np.random.default_rng(seed)
    parameters = model.network(*model.arguments).named_parameters()
    shape = [LENGTH if isinstance(extent, str) else extent for extent in model.shape]
    data: npt.NDArray[Any] = rng.standard_normal(shape, dtype="float32")
    if len(shape) == 2:
        data = rng.integers(model.arguments[-1], size=shape, dtype="int32")
    return [data, *(_weight(rng, [int(d) for d in p.shape]) for _, p in parameters)]


def _weight(rng: np.random.Generator, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    fan_in = math.prod(shape[1:])
    if fan_in == 1:  # a bias, a scale or a shift
        return rng.uniform(0.25, 1.0, shape).astype("float32")
    weight: npt.NDArray[np.float32] = rng.standard_normal(shape, dtype="float32")
    weight *= math.sqrt(2 / fan_in)
    return weight
