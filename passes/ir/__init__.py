# SPDX-License-Identifier: Apache-2.0
"""TVM's IR as our passes read it: walks, buffers and types.

Five modules are vocabularies, which are imported from by themselves: `tir` names TVM's nodes,
`operators` and `relax_operators` its operators, `statements` has the children of a node, and
`storage_entries` the records of a linear sequence, which planners read and which know no TVM.
"""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names

if TYPE_CHECKING:
    from passes.ir.access_walk import find_accesses
    from passes.ir.accesses import (
        AllocationUses,
        Enclosures,
        FunctionAccesses,
        MemoryAccess,
    )
    from passes.ir.buffers import (
        DEFAULT_ALIGNMENT,
        allocated_bits,
        allocation_entry,
        array_get,
        asked_alignment,
        constant_count,
        element_type,
        is_dense,
        is_same_type,
        items,
        new_dtype,
        storage_scope,
    )
    from passes.ir.element_accesses import (
        Around,
        ElementAccess,
        ElementAccesses,
        Linear,
        Number,
        plain,
    )
    from passes.ir.element_rounds import comes_first_in_rounds
    from passes.ir.index_values import NotAnIndexError, Values, rounds_products, values_of
    from passes.ir.linear_access import (
        Access,
        LinearAccess,
        accessed_type,
        find_linear_access,
    )
    from passes.ir.modules import (
        STOCK_MERGE,
        STOCK_REWRITE,
        InternalError,
        IRModule,
        Pass,
        Sequential,
        Target,
        as_target,
        assert_structural_equal,
        build_option,
        current_target,
        make_function_pass,
        make_pass,
        name_of,
        prim_funcs,
        target_kind,
        target_of,
        with_options,
        without_instruments,
    )
    from passes.ir.script_lines import first_line, printed, unique_name
    from passes.ir.statements import begins_threads
    from passes.ir.stored_types import is_widened_later, stored_bits
    from passes.ir.structural import (
        POSTORDER,
        PREORDER,
        SKIP,
        Callbacks,
        has_any,
        nodes_in,
        outermost_threads,
        structural_equal,
        structural_map,
        structural_mutate,
        structural_visit,
        structural_walk,
        with_body,
        with_loop_body,
    )
    from passes.ir.symbolic_bounds import (
        LOWER_BOUND,
        NO_LOWER,
        UPPER_BOUND,
        Bound,
        bounds_at_entry,
        declared_bounds,
        does_not_wrap,
        most_of,
        names_of_sizes,
        variables_of_params,
    )
    from passes.ir.tir import PrimFunc
    from passes.ir.uniform import Uniformity
else:
    __getattr__ = lazy_names(__name__)
