# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext fit``: make a model for TensorFlow Lite Micro take a smaller arena."""

from __future__ import annotations

import argparse
from pathlib import Path

from passes.planning import live_at_the_peak
from tvm_ext.commands import command_options as common
from tvm_ext.hosts.tflite_micro import (
    CORES,
    Fit,
    Fitting,
    Proof,
    axis_of,
    cmsis_nn_scratch,
    fit,
    holds,
    prove,
    read_model,
)
from tvm_ext.text import Table, counted

REFERENCE = "reference"
KERNELS = {REFERENCE: None} | {f"cmsis-nn-{core}": core for core in CORES}


def add_fit(parser: argparse.ArgumentParser) -> None:
    """Add the command's description, arguments and function to a parser or subparser."""
    parser.set_defaults(run=run)
    parser.description = (
        "Plan the arena of a model for TensorFlow Lite Micro, and write the plan into the model's "
        "file, where TensorFlow Lite Micro looks for it. Nothing else has to change on the device."
    )
    parser.epilog = (
        "Exit status: 0 if the model is at its best or was fitted, 1 if it is larger than --arena, "
        "2 on bad input. BYTES may have a unit: 98304, 96KiB."
    )
    add = parser.add_argument
    add("model", metavar="MODEL.tflite", help="the model")
    add("-o", "--output", metavar="OUT.tflite", help="write the fitted model to this file")
    arena = "bytes of the arena on the device: say whether the model fits, and what lacks"
    add("--arena", type=common.byte_count, metavar="BYTES", help=arena)
    place = "let a result take the bytes of an operand where the reference kernels allow it"
    add("--in-place", action="store_true", help=place)
    add("--order", action="store_true", help="run the operators in an order that needs less memory")
    kernels = "the device's kernels: leave room for the scratch memory that they ask for"
    add("--kernels", choices=KERNELS, default=REFERENCE, help=kernels)
    common.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if the model fits the arena, 1 if not."""
    name: str = arguments.model
    if name.endswith(".pte"):
        raise ValueError(
            f"{name}: a program of ExecuTorch gets its plan when it is exported: pass "
            "tvm_ext.hosts.executorch.memory_planning_pass() to its to_executorch "
            "(docs/hosts.md), and 'tvm-ext map' shows the plan in the file"
        )
    common.check_writable(name, arguments.output, arguments.json)
    content = Path(name).read_bytes()
    core = KERNELS[arguments.kernels]
    scratch = None if core is None else cmsis_nn_scratch(read_model(content, name), core)
    found = fit(content, name, scratch)
    best = found.best(in_place=arguments.in_place, order=arguments.order)
    wins = best.head < found.head
    written = best.content() if wins else content
    proof = prove(found, best, written) if wins else None
    lines = [*_table(found).text(), *_remarks(found, best, wins, proof, arguments)]
    status = 0
    if arguments.arena is not None:
        fits, said = _in_arena(found, best if wins else None, written, proof, arguments.arena)
        lines, status = [*lines, *said], int(not fits)
    if wins and arguments.output is not None:
        with common.naming(arguments.output):
            Path(arguments.output).write_bytes(written)
        lines.append(f"wrote {arguments.output}, {len(written) - len(content):+,} bytes")
    common.write_json(arguments.json, _plain(found, best, wins, proof))
    print(*lines, sep="\n")
    return status


def _table(found: Fit) -> Table:
    def of_today(size: int) -> str:
        return f"{size / found.head:.1%}" if found.head else ""

    rows = [["", "head", "of today's", "proven"]]
    rows.append(["today", f"{found.head:,}", of_today(found.head), ""])
    for one in found.choices:
        rows.append([one.label, f"{one.head:,}", of_today(one.head), found.proof(one)])
    operators = sum(len(graph.operators) for graph in found.model.subgraphs)
    title = (
        f"{found.model.name}: {counted(operators, 'operator')}, "
        f"{counted(len(found.arena.residents), 'buffer')} in the head of the arena, in bytes"
    )
    return Table(title, rows)


def _remarks(
    found: Fit, best: Fitting, wins: bool, proof: Proof | None, arguments: argparse.Namespace
) -> list[str]:
    usage, lines = found.usage, [""]
    if usage is not None:
        arena = f"{usage.total:,} bytes: head {usage.head:,}, tail {usage.tail:,}"
        lines.append(f"TensorFlow Lite Micro takes {arena}")
    if found.remark:
        lines.append(found.remark)
        lines.append("the scratch memory of its kernels and the arena's tail are not known")
    if proof is not None:
        ran = f"computes the same bits on {proof.runs} random inputs, and takes"
        does = ran if proof.runs else "takes"
        lines.append(f"with {best.label} it {does} {proof.after.total:,} bytes")
        lines += [proof.remark] if proof.remark else []
    if wins and len(found.model.subgraphs) > 1:
        lines.append(
            "it needs TensorFlow Lite Micro of 2023 or later: older ones misread such plans"
        )
    if not wins:
        lines.append("nothing is won: the model is at its best with these options")
    better = min(found.choices, key=lambda one: one.head)
    if better.head < min(best.head, found.head):
        missing = ["--in-place"] * (better.in_place and not arguments.in_place)
        missing += ["--order"] * (better.moved and not arguments.order)
        lines.append(f"{' '.join(missing)} would bring the head to {better.head:,} bytes")
    return lines


def _in_arena(
    found: Fit, best: Fitting | None, written: bytes, proof: Proof | None, arena: int
) -> tuple[bool, list[str]]:
    """Say whether a model fits an arena, and if not, what would have to change."""
    usage = proof.after if proof is not None else found.usage
    head = best.head if best is not None else found.head
    tail = 0 if usage is None else usage.tail
    needed = head + tail
    known = "" if usage is not None else " (its head alone: the tail is not known)"
    if needed <= arena and (usage is None or found.assumed or holds(written, arena)):
        return True, [f"it fits an arena of {arena:,} bytes: {needed:,} are needed{known}"]
    if needed <= arena:
        return False, [
            f"it does not fit an arena of {arena:,} bytes: {needed:,} are used, and TensorFlow "
            "Lite Micro needs more while it prepares the model"
        ]
    lines = [f"it does not fit an arena of {arena:,} bytes: {needed - arena:,} are missing{known}"]
    chosen = best or found.choices[0]
    lines += live_at_the_peak(chosen.problem, axis_of(chosen.model, chosen.arena))
    for one in sorted(found.choices, key=lambda one: one.head):
        if one.head + tail <= arena:
            lines.append(f"{one.label}: fits, with {one.head + tail:,} bytes")
            break
    else:
        lines += _ways_out(found, tail, arena)
    return False, lines


def _ways_out(found: Fit, tail: int, arena: int) -> list[str]:
    least = min(one.head for one in found.choices)
    lines = [f"no order or reuse found here brings it below {least + tail:,} bytes"]
    if tail and max(least, tail) <= arena:
        lines.append(
            f"a second arena would hold it: {least:,} bytes for the head and {tail:,} for the tail "
            "(MicroAllocator::Create takes two)"
        )
    room = arena - tail
    if 0 < room < least:
        side = (room / least) ** 0.5
        lines.append(
            f"its tensors would have to shrink to {int(100 * room / least)}%: for images that is "
            f"about {int(100 * side)}% of the height and width of the input"
        )
    return lines


def _plain(found: Fit, best: Fitting, wins: bool, proof: Proof | None) -> dict[str, object]:
    usage = found.usage
    return {
        "model": found.model.name,
        "head": found.head,
        "tail": None if usage is None else usage.tail,
        "choices": [
            {
                "in_place": one.in_place,
                "order": one.moved,
                "head": one.head,
                "lower_bound": one.bound,
                "proven": one.proven,
            }
            for one in found.choices
        ],
        "written": {"in_place": best.in_place, "order": best.moved} if wins else None,
        "measured": None if proof is None else {"head": proof.after.head, "tail": proof.after.tail},
        "remark": found.remark or None,
    }
