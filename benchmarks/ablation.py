# SPDX-License-Identifier: Apache-2.0
"""What each mechanism wins: it is switched off, and everything is planned again.

    python benchmarks/ablation.py [columns parts ...]

A mechanism stays if, switched off, it costs a percent of price or three percent of bytes moved in
two cases; or if a correctness argument needs it, or an original has it. A mechanism is switched off
by replacing a function, so that the product needs no option for it.

These are mechanisms of the search for groups, on the fixed pairs of a network and a chip
(`layer_group_pairs`). Printed are how many pairs cost a percent more, the most in price and in
bytes moved, how many pairs cost less, and the sum of all prices.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import test_libraries  # noqa: F401 - lets the next ones be found

sys.path.insert(0, str(Path(__file__).parents[1]))

from layer_group_pairs import PAIRS, chip_named, networks_of

from passes.layer_group.planning import (
    cut,
    layer_groups,
    loops,
    planned_group,
    search,
)
from passes.layer_group.planning.layer_groups import plan_layer_groups, tail_to_head
from passes.layer_group.planning.network import Network


def without_balance() -> Any:
    """Leave each transfer in the time step beside which it runs at first."""
    cost = planned_group.group_cost

    def unbalanced(*arguments: Any, **_: Any) -> Any:
        return cost(*arguments, balance=False)

    return patch.object(planned_group, "group_cost", unbalanced)


def without_channels_on_cores() -> Any:
    """Let cores share slices alone."""
    found = search.GroupSearch.in_parts

    def shared(self: Any, *arguments: Any) -> Any:
        ways = found(self, *arguments)
        return ways and [cut for cut in ways if not cut.by_channels]

    return patch.object(search.GroupSearch, "in_parts", shared)


LAYER_GROUP: Mapping[str, Callable[[], Any]] = {
    "parts": lambda: patch.object(search.GroupSearch, "in_parts", lambda *_: []),
    "channels on cores": without_channels_on_cores,
    "halos kept": lambda: patch.dict(search.HALOS, {"cheapest": (False,)}),
    "columns": lambda: patch.object(
        search,
        "cuts_to_try",
        lambda *given: tuple(x for x in cut.cuts_to_try(*given) if not x.is_further),
    ),
    "balance of transfers": without_balance,
    "waiting of layers alone": lambda: patch.object(
        search.GroupSearch, "waiting", lambda self, number: self.alone[number]
    ),
    "second loop behind a sum": lambda: patch.object(loops._Open, "_afterwards", {}),
    "other orders": lambda: patch.object(layer_groups, "FEW_LAYERS", 0),
    "order by dependencies": lambda: patch.object(
        layer_groups, "by_dependencies", lambda network, *_: network
    ),
    "dynamic program": lambda: patch.dict(
        "passes.layer_group.planning.layer_groups.SEARCHES", {"dynamic_programming": tail_to_head}
    ),
}
"""How each mechanism of the search for groups is switched off."""


def planned(networks: Mapping[str, tuple[Network, ...]]) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each pair, its price, and the bytes that it moves."""
    for name, chip in PAIRS:
        found = [
            plan_layer_groups(network, chip_named(chip), halo="cheapest")
            for network in networks[name]
        ]
        price, moved = sum(x.after.price for x in found), sum(x.after.moved for x in found)
        yield f"{name} on {chip}", price, moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [*LAYER_GROUP]
    parser.add_argument("without", nargs="*", default=names, choices=names, metavar="MECHANISM")
    without = parser.parse_args().without
    networks = {name: networks_of(name) for name, _ in PAIRS}
    whole = {name: (price, moved) for name, price, moved in planned(networks)}
    for mechanism in without:
        with LAYER_GROUP[mechanism]():
            found = {name: (price, moved) for name, price, moved in planned(networks)}
        prices = {name: 100 * found[name][0] / whole[name][0] - 100 for name in whole}
        moved = {name: 100 * found[name][1] / max(1, whole[name][1]) - 100 for name in whole}
        total = sum(price for price, _ in found.values()) / sum(p for p, _ in whole.values())
        print(
            f"without {mechanism}: {sum(x >= 1 for x in prices.values())} of {len(prices)} pairs "
            f"cost 1 % more, {sum(x >= 3 for x in moved.values())} move 3 % more; at most "
            f"{max(prices.values()):+.1f} % ({max(prices, key=lambda n: prices[n])}) and "
            f"{max(moved.values()):+.1f} % ({max(moved, key=lambda n: moved[n])}); "
            f"{sum(x < 0 for x in prices.values())} cost less; all {100 * total - 100:+.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
