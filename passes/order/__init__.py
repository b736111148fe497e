# SPDX-License-Identifier: Apache-2.0
"""OrderForMemory: the operators of a network in the order in which the least memory is live."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names

if TYPE_CHECKING:
    from passes.order.function_order import FunctionOrder
    from passes.order.planning.operator_graph import FoundOrder, LiveBytes, OrderProblem
    from passes.order.planning.order_search import find_order
    from passes.order.transform import OrderForMemory, order_functions, with_orders
else:
    __getattr__ = lazy_names(__name__)
