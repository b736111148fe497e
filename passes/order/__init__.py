# SPDX-License-Identifier: Apache-2.0
"""OrderForMemory: the operators of a network in the order in which the least memory is live."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names

if TYPE_CHECKING:
    from passes.order.functions import FunctionOrder
    from passes.order.planning.search import NODES
    from passes.order.transform import OrderForMemory, order_functions, with_orders
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "functions": "FunctionOrder",
            "planning.search": "NODES",
            "transform": "OrderForMemory order_functions with_orders",
        },
    )

__all__ = ["NODES", "FunctionOrder", "OrderForMemory", "order_functions", "with_orders"]
