# SPDX-License-Identifier: Apache-2.0
"""Begin and end of each allocation's life, over the linear sequence."""

from __future__ import annotations

from collections import defaultdict

from passes.ir.storage_entries import EventEntry, StmtEntry


def liveness_analysis(sequence: list[StmtEntry]) -> dict[int, EventEntry]:
    """Find the statement that first and the one that last touches each allocation.

    The source of the rule is `LivenessAnalysis` of TVM's StorageRewrite. An allocation used inside
    a loop but made outside of it counts as touched by the loop, so it begins before the loop and
    ends after it. Events stand by `StmtEntry.key`; a statement with neither gen nor kill is absent.
    """
    events: defaultdict[int, EventEntry] = defaultdict(EventEntry)
    seen: set[int] = set()
    for entry in reversed(sequence):
        for index in entry.touched:
            if index not in seen:
                seen.add(index)
                events[entry.key].kill.append(index)
    seen.clear()
    for position, entry in enumerate(sequence):
        offset = entry.scope_pair_offset
        if offset >= 0:
            # The second half of a statement with a body has all that the body touched.
            for index in sequence[position + offset].touched:
                if index not in seen:
                    seen.add(index)
                    events[entry.key].gen.append(index)
    return events
