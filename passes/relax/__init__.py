# SPDX-License-Identifier: Apache-2.0
"""Memory of a Relax function over time: read once, for all passes that plan it."""

from passes.relax.bindings import (
    OpaqueValues,
    bindings_of,
    functions_in_order,
    place_of,
    renamed,
    signature_variables,
    variables_in,
)
from passes.relax.facts import (
    HOST,
    MAIN_DEVICE,
    PLANS_RESULTS,
    SCOPE,
    KernelUses,
    RelaxMemory,
    TensorGroup,
)
from passes.relax.graph import NUM_INPUT, read_relax_memory
from passes.relax.sizes import Size, Sizes, UnknownSizeError, element_bytes, product, value_of
from passes.relax.tensors import EXPECTED, RETURNED, UNCAPTURED, on_one_path, same_device
