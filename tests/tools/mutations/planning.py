# SPDX-License-Identifier: Apache-2.0
"""Rules of planners: who may share bytes, what the verifier sees, and loops that place blocks."""

from __future__ import annotations

from mutants import Fault, Rule

_PROBLEM = "tests/planning/test_problem.py"
_VERIFY = "tests/planning/test_verify.py"
_PLANNERS = "tests/planning/planners/test_planners.py"
_RIGHT = f"{_PLANNERS}::test_plans_are_right_and_say_whether_they_fit"
_OPTIMUM = f"{_PLANNERS}::test_the_optimum_is_found"
_MANY = "tests/planning/engine/test_many_blocks.py"
_MERGED = "tests/planning/engine/test_coalesce.py"
_CLAIMS = "tests/planning/test_claims.py"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule(
        "verifier: what is placed wrongly is found",
        "passes/planning/verify.py",
        ("_unplaced", "_rotates", "_loops", "_misplaced", "_overlapping", "_shared", "charge"),
        (_VERIFY,),
    ),
    Rule(
        "verifier: all that overlaps is found",
        "passes/planning/verify.py",
        ("_live_overlaps", "_Disjoint.added", "_Disjoint.remove", "_Disjoint.sharing_with"),
        (_VERIFY,),
    ),
    Rule(
        "problem: what contradicts itself is refused",
        "passes/planning/problem.py",
        ("_check_names", "_check_known", "_check_pairs", "_check_pins", "_check_total"),
        (_PROBLEM,),
    ),
    Rule(
        "problem: buffers that contradict themselves are refused",
        "passes/planning/buffer.py",
        ("_checked_live", "_is_one_range", "_checked_pins"),
        (_PROBLEM,),
    ),
    Rule(
        "problem: pins that share bytes",
        "passes/planning/problem.py",
        ("slots_that_meet", "_may_not_share"),
        (_PROBLEM, "tests/planning/test_bound.py", _VERIFY),
    ),
    Rule(
        "slots: who may have more offsets, and rotates with whom",
        "passes/planning/buffer.py",
        ("Buffer.may_widen", "Buffer.rotates_with"),
        (f"{_PLANNERS}::test_only_what_a_loop_writes_anew_gets_more_offsets", _RIGHT),
    ),
    Rule(
        "live ranges",
        "passes/planning/buffer.py",
        ("join_ranges", "common", "live_together"),
        (_PROBLEM, "tests/planning/test_bound.py", _RIGHT),
    ),
    Rule(
        "lower bound",
        "passes/planning/bound.py",
        (),
        ("tests/planning/test_bound.py", _CLAIMS),
    ),
    Rule(
        "blocks: who conflicts, who may be in place",
        "passes/planning/engine/blocks.py",
        (
            "BlockList.separated", "BlockList.interference_among", "BlockList.met_by",
            "BlockList.pieces", "BlockList.soft", "BlockList.in_place_pairs", "BlockList.partners",
            "BlockList.due", "BlockList.slots_match", "BlockList._status",
            "_live_together",
        ),
        (_RIGHT, _MANY),
    ),
    Rule(
        "blocks: where one settles",
        "target_hw/memory.py",
        ("settle",),
        (_RIGHT, _MANY),
    ),
    Rule(
        "in place: which pairs can be",
        "passes/planning/in_place.py",
        (),
        (_MERGED, _RIGHT, "tests/ascend/test_three_level.py"),
    ),
    Rule(
        "in place: what is merged",
        "passes/planning/engine/coalesce.py",
        (),
        (_MERGED, _OPTIMUM),
    ),
    Rule(
        "slots: how many more",
        "passes/planning/engine/widen.py",
        (),
        (_RIGHT, _OPTIMUM, _CLAIMS),
    ),
    Rule(
        "exact search",
        "passes/planning/planners/exact.py",
        (),
        (_RIGHT, _OPTIMUM, _CLAIMS),
    ),
    Rule(
        "first and best fit",
        "passes/planning/planners/first_fit.py",
        ("fit_blocks", "_gap"),
        (_RIGHT, _MANY),
    ),
    Rule(
        "loops: skyline",
        "passes/planning/planners/skyline_loop.py",
        ("_lowest_rank", "_settled", "_place", "_fill"),
        (_RIGHT, _MANY),
    ),
    Rule(
        "loops: search",
        "passes/planning/planners/canonical_loop.py",
        ("_next_block", "_settled", "_raise_conflicts", "_may_fit", "_add_groups"),
        ("tests/planning/engine/test_branch_and_bound.py", _RIGHT),
    ),
    Rule(
        "loops: relocation",
        "passes/planning/planners/relocation_loop.py",
        ("_count", "_put_back", "_clear", "_candidate"),
        ("tests/planning/engine/test_relocate.py", _RIGHT),
    ),
    Rule(
        "Ascend: what shares an entry",
        "passes/ascend/planning/entries.py",
        ("Entry.kind", "entries_of", "plan_order", "sequential"),
        ("tests/ascend",),
    ),
    Rule(
        "Ascend: what sharing costs",
        "passes/ascend/planning/levels.py",
        ("pipes_conflict", "with_level_penalties", "_penalty"),
        ("tests/ascend",),
    ),
    Rule(
        "Ascend: the level of a buffer",
        "passes/ascend/planning/levels.py",
        ("reuse_of", "_level", "_in_step", "_sharing"),
        ("tests/ascend",),
    ),
    Fault(
        "verifier fault: slots that overlap by a byte",
        "passes/planning/verify.py",
        "if before and before[0].end > placed.begin:",
        "if before and before[0].end > placed.begin + 1:",
        (_VERIFY,),
    ),
    Fault(
        "verifier fault: lives that overlap by a position",
        "passes/planning/verify.py",
        "np.array(ends + begins, dtype=np.int64)",
        "np.array([e - 1 for e in ends] + begins, dtype=np.int64)",
        (_VERIFY,),
    ),
    Fault(
        "live ranges fault: the last position of a life",
        "passes/planning/buffer.py",
        "return any(max(a, c) < min(b, d) for",
        "return any(max(a, c) < min(b, d) - 1 for",
        (_PROBLEM, _MERGED),
    ),
    Fault(
        "blocks fault: lives that meet at one position",
        "passes/planning/engine/blocks.py",
        'met = np.searchsorted(begins, ends, side="left")',
        'met = np.searchsorted(begins, ends - 1, side="left")',
        (_RIGHT,),
    ),
    Fault(
        "blocks fault: an obstacle that ends above an offset",
        "target_hw/memory.py",
        "        if end > offset:\n",
        "        if end > offset + 1:\n",
        (_RIGHT,),
    ),
    Fault(
        "first fit fault: a gap that is too small",
        "passes/planning/planners/first_fit.py",
        "(rooms >= size).argmax()",
        "(rooms >= size - 1).argmax()",
        (_MANY,),
    ),
    Fault(
        "first fit fault: the end of what is in the way",
        "passes/planning/planners/first_fit.py",
        "np.maximum.accumulate(high[along], out=begins[1:])",
        "begins[1:] = high[along]",
        (_MANY,),
    ),
    Fault(
        "blocks fault: lives that meet at one position, found one by one",
        "passes/planning/engine/blocks.py",
        "(begins < end) & (begin < ends)",
        "(begins < end - 1) & (begin < ends)",
        (_MANY,),
    ),
    Fault(
        "loops fault: skyline, separated blocks",
        "passes/planning/planners/skyline_loop.py",
        "if offset >= 0 and offset < low + size and",
        "if offset >= 0 and offset < low + size - 1 and",
        (_MANY,),
    ),
    Fault(
        "loops fault: skyline, what is taken",
        "passes/planning/planners/skyline_loop.py",
        "state.taken_begin[at] < low + size\n",
        "state.taken_begin[at] < low + size - 1\n",
        (_MANY,),
    ),
    Fault(
        "loops fault: skyline, the rest of a stretch",
        "passes/planning/planners/skyline_loop.py",
        "    if stop < end:\n",
        "    if stop + 1 < end:\n",
        (_MANY,),
    ),
    Fault(
        "loops fault: search, a reach below what was placed",
        "passes/planning/planners/canonical_loop.py",
        "if reach[other] >= top or",
        "if reach[other] >= top - 1 or",
        ("tests/planning/engine/test_branch_and_bound.py",),
    ),
    Fault(
        "loops fault: search, what is reserved",
        "passes/planning/planners/canonical_loop.py",
        "if state.obstacle_end[at] > low:",
        "if state.obstacle_end[at] > low + 1:",
        (_RIGHT, "tests/planning/engine/test_branch_and_bound.py"),
    ),
    Fault(
        "loops fault: relocation, what is reserved",
        "passes/planning/planners/relocation_loop.py",
        "offset < state.reserved_end[at]:",
        "offset < state.reserved_end[at] - 1:",
        ("tests/planning/engine/test_relocate.py", _RIGHT),
    ),
    Fault(
        "loops fault: relocation, the capacity",
        "passes/planning/planners/relocation_loop.py",
        "if offset + size > state.capacity:",
        "if offset + size > state.capacity + 1:",
        ("tests/planning/engine/test_relocate.py", _RIGHT),
    ),
)  # fmt: skip
