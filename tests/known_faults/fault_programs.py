# SPDX-License-Identifier: Apache-2.0
"""Programs that planners of others got wrong: values that live on where they seem to end.

From pypto 1821 (a value from one branch or the other), 1908 and 2649 (several buffers in the place
of a dead one), tilelang-ascend 1156 (written once, read in every iteration), FlagTree 1237 and
Triton 11634 (a name for one of two buffers), tilelang 2185 and 2281 (lives that were split where
threads synchronize and branches part), tilelang-ascend 1171 and 1286 (addresses of a user).
"""

from __future__ import annotations

from dataclasses import dataclass

from program_text import programs

PROGRAMS = programs("""
def read_after_branches(x: 64, cond: 1 int32, y: 64):
    a, result, e, f: local.UB 64
    a[i] = x[i] for i in range(64)
    if cond[0] < 2:
        b: local.UB 64
        b[i] = a[63 - i] + a[i] for i in range(64)
        result[i] = b[i] * T.float32(2) for i in range(64)
    else:
        c: local.UB 64
        c[i] = a[63 - i] * a[i] for i in range(64)
        result[i] = c[i] - T.float32(1) for i in range(64)
    e[i] = a[63 - i] + T.float32(3) for i in range(64)
    f[i] = result[63 - i] + e[i] for i in range(64)
    y[i] = a[i] + f[i] for i in range(64)

def running_maximum(x: 512, y: 72):
    most: local.UB 8
    total: local.UB 64
    for t in range(8):
        tile: local.UB 64
        here: local.UB 8
        tile[i] = x[t * 64 + i] for i in range(64)
        here[i] = T.max(tile[i], tile[63 - i]) for i in range(8)
        if t == 0:  # The first round sets the state, the others change it.
            most[i] = here[i] for i in range(8)
            total[i] = tile[i] for i in range(64)
        else:
            larger: local.UB 8
            scaled: local.UB 64
            larger[i] = T.max(most[7 - i], here[i]) for i in range(8)
            scaled[i] = total[63 - i] - larger[i % 8] for i in range(64)
            most[i] = larger[i] for i in range(8)
            total[i] = scaled[i] + tile[i] for i in range(64)
        other: local.UB 64
        other[i] = total[63 - i] - tile[i] for i in range(64)
        total[i] = other[i] + T.float32(1) for i in range(64)
    y[i] = total[i] for i in range(64)
    y[64 + i] = most[i] for i in range(8)

def panel_then_tiles(x: 1024, y: 512):
    held: local.UB 512
    held[i] = x[i] for i in range(512)
    y[i] = held[511 - i] for i in range(512)
    for k in range(2):
        ping, pong, last: local.UB 256
        ping[i] = x[512 + k * 256 + i] for i in range(256)
        pong[i] = ping[255 - i] + y[i] for i in range(256)
        last[i] = pong[255 - i] * T.float32(2) for i in range(256)
        y[k * 256 + i] = y[k * 256 + i] + last[i] for i in range(256)

def best_of_segments(score: 2048, limit: 8 int32, out: 256):
    index: local.UB 256 int32
    best: local.UB 256
    index[i] = i for i in range(256)
    best[i] = T.float32(-1000) for i in range(256)
    for s in range(8):
        part: local.UB 256
        mask: local.UB 256 int8
        kept, merged: local.UB 256
        part[i] = score[s * 256 + i] for i in range(256)
        for i in range(256):
            mask[i] = T.Cast("int8", index[i] < limit[s])  # In the text, the last use of `index`.
        for i in range(256):
            kept[i] = T.if_then_else(mask[i] == T.int8(1), part[i], T.float32(-1000))
        merged[i] = T.max(best[i], kept[255 - i]) for i in range(256)
        best[i] = merged[i] for i in range(256)
    out[i] = best[i] for i in range(256)

def allocated_in_front(score: 2048, limit: 8 int32, out: 256):
    index: local.UB 256 int32
    best, part: local.UB 256
    mask: local.UB 256 int8
    kept, merged: local.UB 256
    index[i] = i for i in range(256)
    best[i] = T.float32(-1000) for i in range(256)
    for s in range(8):
        part[i] = score[s * 256 + i] for i in range(256)
        mask[i] = T.Cast("int8", index[i] < limit[s]) for i in range(256)
        for i in range(256):
            kept[i] = T.if_then_else(mask[i] == T.int8(1), part[i], T.float32(-1000))
        merged[i] = T.max(best[i], kept[255 - i]) for i in range(256)
        best[i] = merged[i] for i in range(256)
    out[i] = best[i] for i in range(256)

def in_nested_loops(x: 1536, out: 1536):
    weight: local.UB 64
    weight[i] = T.Cast("float32", i % 7) for i in range(64)
    for row in range(4):
        for col in range(3):
            scaled, turned: local.UB 128
            if col != 1:  # `weight` is read in some of the iterations only.
                scaled[i] = x[row * 384 + col * 128 + i] * weight[i // 2] for i in range(128)
            else:
                scaled[i] = x[row * 384 + col * 128 + i] for i in range(128)
            turned[i] = scaled[127 - i] for i in range(128)
            out[row * 384 + col * 128 + i] = turned[i] for i in range(128)

def for_if_for(x: 512, which: 4 int32, y: 256):
    a, b: local.UB 64
    for r in range(4):
        a[i] = x[r * 128 + i] for i in range(64)
        b[i] = x[r * 128 + 64 + i] for i in range(64)
        if which[r] >= 0:
            made: local.UB 64
            chosen_slot: T.let = T.tvm_stack_alloca("array", 1)
            if which[r] == 0:
                T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, a.data))
            else:
                T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, b.data))
            chosen: T.let = T.tvm_struct_get(chosen_slot, 0, 1, "handle")
            view = T.decl_buffer((64,), "float32", data=chosen, scope="local.UB")
            for k in range(2):
                made[i] = view[63 - i] + T.Cast("float32", k) for i in range(64)
                y[r * 64 + i] = y[r * 64 + i] + made[i] for i in range(64)

def chosen_once(x: 192, which: 1 int32, y: 64):
    a, b, late: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = x[64 + i] for i in range(64)
    chosen_slot: T.let = T.tvm_stack_alloca("array", 1)
    if which[0] == 0:
        T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, a.data))
    else:
        T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, b.data))
    chosen: T.let = T.tvm_struct_get(chosen_slot, 0, 1, "handle")
    view = T.decl_buffer((64,), "float32", data=chosen, scope="local.UB")
    late[i] = x[128 + i] for i in range(64)
    y[i] = view[63 - i] + late[i] for i in range(64)

def written_in_branches(x: 128, cond: 2 int32, y: 128):
    base, norm, other, tail: local.UB 64
    base[i] = x[i] for i in range(64)
    if cond[0] > 0:
        if cond[1] > 0:
            norm[i] = x[i] * T.float32(2) for i in range(64)
        else:
            norm[i] = x[64 + i] for i in range(64)
    else:
        norm[i] = T.float32(0) for i in range(64)
    other[i] = x[127 - i] for i in range(64)
    y[i] = norm[63 - i] + other[i] for i in range(64)
    tail[i] = x[32 + i] for i in range(64)
    y[64 + i] = base[63 - i] + tail[i] for i in range(64)

def carried_past_stages(x: 256, cond: 2 int32, y: 320):
    carry: local.UB 64
    carry[i] = x[i] for i in range(64)
    for k in range(4):
        first, second: local.UB 64
        if cond[0] > k:
            first[i] = x[k * 64 + i] for i in range(64)
        else:
            first[i] = T.float32(1) for i in range(64)
        second[i] = first[63 - i] for i in range(64)
        y[k * 64 + i] = second[i] for i in range(64)
    y[256 + i] = carry[i] for i in range(64)

def used_in_two_phases(x: 192, y: 256):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    y[i] = a[63 - i] for i in range(64)
    b[i] = x[64 + i] for i in range(64)
    y[64 + i] = b[63 - i] for i in range(64)
    for i in range(32):  # The other half is still what the first phase wrote.
        a[i] = x[128 + i]
    y[128 + i] = a[63 - i] for i in range(64)
    y[192 + i] = a[i] - b[i] for i in range(64)

def halves(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(32)
    b[32 + i] = x[32 + i] for i in range(32)
    y[i] = a[31 - i] for i in range(32)
    y[32 + i] = b[63 - i] for i in range(32)

def pipelined_by_hand(x: 512, y: 512):
    stage: local.UB 128
    stage[i] = x[i] for i in range(64)
    for k in range(8):
        made: local.UB 64
        if k < 7:  # What the next iteration reads is written before this one uses `made`.
            stage[(k + 1) % 2 * 64 + i] = x[(k + 1) * 64 + i] for i in range(64)
        made[i] = stage[k % 2 * 64 + 63 - i] for i in range(64)
        y[k * 64 + i] = made[i] for i in range(64)

def either_or(x: 192, cond: 1 int32, y: 128):
    a, b, c: local.UB 64
    if cond[0] == 0:
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    else:
        b[i] = x[64 + i] for i in range(64)
        y[i] = b[63 - i] for i in range(64)
    c[i] = x[128 + i] for i in range(64)
    y[64 + i] = c[63 - i] for i in range(64)

def allocated_in_branches(x: 192, cond: 1 int32, y: 128):
    if cond[0] == 0:
        a: local.UB 64
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    else:
        b: local.UB 64
        b[i] = x[64 + i] for i in range(64)
        y[i] = b[63 - i] for i in range(64)
    c: local.UB 64
    c[i] = x[128 + i] for i in range(64)
    y[64 + i] = c[63 - i] for i in range(64)

def grows_behind_a_freed_block(x: 96, y: 96):
    a: local.UB 64
    b: local.UB 32
    c: local.UB 96
    a[i] = x[i] for i in range(64)
    b[i] = x[i + 64] for i in range(32)
    y[i] = b[31 - i] for i in range(32)
    c[i] = y[i % 32] + a[i % 64] for i in range(96)
    y[i] = c[95 - i] + a[63 - i % 64] for i in range(96)

def ping_pong(x: 4096, y: 512):
    left = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=0)
    right = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=4096)
    total: local.UB 512
    workspace = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=4096)
    total[i] = T.float32(0) for i in range(512)
    for g in range(4):
        left[i] = x[g * 1024 + i] for i in range(512)
        right[i] = x[g * 1024 + 512 + i] for i in range(512)
        total[i] = total[i] + left[i] * T.float32(2) + right[511 - i] for i in range(512)
    T.evaluate(T.call_extern("int32", "memcpy", workspace.data, total.data, T.int64(2048)))
    y[i] = total[i] - workspace[511 - i] for i in range(512)

def phases(x: 1024, y: 1024):
    a: local.UB 1024
    b, c: local.UB 512
    d, e, f: local.UB 256
    a[i] = x[i] for i in range(1024)
    y[i] = a[1023 - i] for i in range(1024)
    for k in range(2):
        b[i] = y[i] + T.Cast("float32", k) for i in range(512)
        c[i] = b[511 - i] for i in range(512)
        y[i] = c[i] + b[i] for i in range(512)
    d[i] = y[i] for i in range(256)
    e[i] = d[255 - i] for i in range(256)
    f[i] = e[255 - i] + d[255 - i] for i in range(256)
    y[512 + i] = f[i] for i in range(256)
""")


@dataclass(frozen=True)
class Case:
    """The fewest bytes that a program needs, and what shows a fault."""

    least: int
    second: tuple[tuple[int, ...], ...] = ((),)  # Of each call, the second argument
    shown: tuple[tuple[str, str], ...] = ()  # Pairs with which a result is wrong if they share
    on_ascend: int | None = None  # Bytes on an Ascend core, where these are more
    but: tuple[str, ...] = ()  # Plans that are left out


SEGMENTS = ((95, 185, 250, 141, 22, 213, 204, 175),)
ONCE = (("merged", "index"), ("kept", "index"))
"""What the planner of TileLang did: `index` has no use after these in the text."""
LIKE_STOCK = ("StorageRewrite",)
"""The stock pass keeps no memory alive behind a pointer; docs/stock-differences.md shows it."""

CASES = {
    # `a`, the result and one more; what the branches make takes the place of what comes later. An
    # Ascend core does not add in place of an operand when another one is read backwards.
    "read_after_branches": Case(768, ((0,), (5,)), (("e", "result"), ("e", "a")), on_ascend=1024),
    # `total`, `tile` and `scaled`, `most`, and `larger` in the place of `here` behind it at the
    # next multiple of 64, which is the alignment where a target describes none.
    "running_maximum": Case(
        864, shown=(("other", "total"), ("here", "most"), ("larger", "most")), on_ascend=896
    ),
    "panel_then_tiles": Case(2048, shown=(("pong", "ping"),)),
    # `index` and `best` all the time, and in an iteration at most `kept` with `merged`. An Ascend
    # core does not select in place: 256 bytes of `mask` and `kept` next to `part`.
    "best_of_segments": Case(4096, SEGMENTS, ONCE, on_ascend=4352),
    # All of them live through the loop.
    "allocated_in_front": Case(5376, SEGMENTS, ONCE),
    "in_nested_loops": Case(1280, shown=(("turned", "weight"),)),
    "for_if_for": Case(768, ((0, 1, -1, 0),), (("made", "a"), ("made", "b")), but=LIKE_STOCK),
    "chosen_once": Case(768, ((0,), (1,)), (("late", "a"), ("late", "b")), but=LIKE_STOCK),
    "written_in_branches": Case(768, ((0, 0), (1, 0), (1, 1)), (("other", "norm"),)),
    "carried_past_stages": Case(768, ((2, 0),), (("second", "carry"),)),
    "used_in_two_phases": Case(512, shown=(("b", "a"),)),
    "halves": Case(256),  # TVM itself cuts both buffers to the half that is used.
    "pipelined_by_hand": Case(768, shown=(("made", "stage"),)),
    "either_or": Case(256, ((0,), (1,)), on_ascend=512),
    "allocated_in_branches": Case(256, ((0,), (1,))),
    "grows_behind_a_freed_block": Case(640, shown=(("c", "a"),)),
    # Two buffers share the address of a user, and the rest goes around them. What the stock pass
    # does to `workspace.data` is among the differences from it.
    "ping_pong": Case(6144, shown=(("total", "left"), ("total", "right")), but=LIKE_STOCK),
    # Three phases of 4096, 4096 and, with one result in the place of an operand, 2048 bytes.
    "phases": Case(4096, shown=(("c", "b"),)),
}
"""By the name of the program."""
