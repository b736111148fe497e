"""Moving buffers step by step: the compiled version.

The steps of `passes.planning.engine.relocate.steps`, by the same names, in TVMScript. Numbers
that the Python version keeps in lists are columns of integer arrays here.
"""

# TVMScript is Python in syntax only, and types and names that it has are not Python's.
# mypy: ignore-errors

from __future__ import annotations

from tvm.script import tirx as T

from passes.planning.engine.relocate.compiled_relocate import (
    ALIGNMENT,
    BEGIN,
    BEST,
    BEST_COST,
    BEST_PEAK,
    CAPACITY,
    COST,
    COST_IN_STEP,
    CROSSED,
    END,
    EQUAL,
    FIRST,
    FIXED,
    HARD,
    HEAT,
    LOCAL_SIZE,
    LOW,
    MET,
    MET_CROSSED,
    NODES,
    ONE,
    OTHER,
    OWES,
    OWNER,
    PARTNER,
    PENALTY,
    PRICE,
    RESERVED,
    SEED,
    SIZE,
    SLOTS,
    STATE_SIZE,
    STEPS,
    STOP,
    T_BLOCK,
    T_LOW,
    TOTAL,
    TWO,
)
from passes.planning.engine.relocate.steps import (
    EJECTIONS,
    FIXED_POINT,
    MODULUS,
    MOST_OUT,
    MULTIPLIER,
    NO_LIMIT,
    NOWHERE,
)

# Variables that change, and what functions return: a variable of TVMScript's own would be
# allocated by a call each time that it is met.
(
    DRAWN,
    CHARGE,
    CHARGE_BEFORE,
    COUNT_AT,
    WEIGHTED_LEFT,
    WEIGHTED,
    COST_AT,
    RELATION_AT,
    CANDIDATE,
    CANDIDATES,
    OFFSET,
    USABLE,
    RESERVED_AT,
    TIES,
    CHEAPEST,
    CHEAPEST_COST,
    TAKE_AT,
    TAKEN,
    OUT,
    FIRST_TAKEN,
    CLEAR_AT,
    SORT_AT,
    SORT_TO,
    PUT_AT,
    PUT_SLOT,
    DONE,
    EJECTING,
    PAY,
    EXTRA,
    UNDO_AT,
    PEAK,
    PEAK_AT,
    KNOWN,
    BEFORE,
    STEP,
    SWAPPED,
    SIGN,
    BANNED,
    MOVED,
) = range(39)


@T.prim_func
def relocate(
    blocks_handle: T.handle,
    buffers_handle: T.handle,
    rows_handle: T.handle,
    relations_handle: T.handle,
    penalties_handle: T.handle,
    due_rows_handle: T.handle,
    dues_handle: T.handle,
    reserved_handle: T.handle,
    noise_handle: T.handle,
    prices_handle: T.handle,
    chosen_handle: T.handle,
    taken_handle: T.handle,
    local_handle: T.handle,
    state_handle: T.handle,
):
    """`Relocation.advance`; each inline function is the method of its name."""
    n0, n1, n2, n3, n4 = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
    n5, n6, n7, n8 = T.int64(), T.int64(), T.int64(), T.int64()
    blocks = T.match_buffer(blocks_handle, (n0, 6), "int64")
    buffers = T.match_buffer(buffers_handle, (n1, 3), "int64")
    rows = T.match_buffer(rows_handle, (n2,), "int64")
    relations = T.match_buffer(relations_handle, (n3, 7), "int64")
    penalties = T.match_buffer(penalties_handle, (n4, 6), "int64")
    due_rows = T.match_buffer(due_rows_handle, (n5,), "int64")
    dues = T.match_buffer(dues_handle, (n6,), "int64")
    reserved = T.match_buffer(reserved_handle, (n7, 2), "int64")
    noise = T.match_buffer(noise_handle, (FIXED_POINT,), "int64")
    prices = T.match_buffer(prices_handle, (EJECTIONS,), "int64")
    chosen = T.match_buffer(chosen_handle, (MOST_OUT + 2,), "int64")
    taken = T.match_buffer(taken_handle, (n8, 2), "int64")
    local = T.match_buffer(local_handle, (LOCAL_SIZE,), "int64")
    state = T.match_buffer(state_handle, (STATE_SIZE,), "int64")

    @T.inline
    def draw(count):
        state[SEED] = state[SEED] * MULTIPLIER % MODULUS
        local[DRAWN] = state[SEED] % count

    @T.inline
    def charge(penalty):
        local[CHARGE] = 0
        if penalties[penalty, MET] > 0:
            local[CHARGE] = penalties[penalty, COST_IN_STEP]
            if penalties[penalty, MET_CROSSED] > 0:
                local[CHARGE] = penalties[penalty, COST]

    @T.inline
    def count(block, sign):
        local[COUNT_AT] = rows[block]
        while local[COUNT_AT] < rows[block + 1]:
            penalty: T.let[T.int64] = relations[local[COUNT_AT], PENALTY]
            if penalty >= 0:
                other: T.let[T.int64] = relations[local[COUNT_AT], OTHER]
                if (
                    blocks[other, LOW] >= 0
                    and blocks[other, LOW] < blocks[block, LOW] + blocks[block, SIZE]
                    and blocks[block, LOW] < blocks[other, LOW] + blocks[other, SIZE]
                ):
                    charge(penalty)
                    local[CHARGE_BEFORE] = local[CHARGE]
                    penalties[penalty, MET] = penalties[penalty, MET] + sign
                    penalties[penalty, MET_CROSSED] = (
                        penalties[penalty, MET_CROSSED] + sign * relations[local[COUNT_AT], CROSSED]
                    )
                    charge(penalty)
                    added: T.let[T.int64] = local[CHARGE] - local[CHARGE_BEFORE]
                    one: T.let[T.int64] = penalties[penalty, ONE]
                    two: T.let[T.int64] = penalties[penalty, TWO]
                    state[TOTAL] += added
                    buffers[one, OWES] = buffers[one, OWES] + added
                    buffers[two, OWES] = buffers[two, OWES] + added
            local[COUNT_AT] += 1

    @T.inline
    def take_out(buffer):
        local[TAKE_AT] = buffers[buffer, FIRST]
        while local[TAKE_AT] < buffers[buffer, FIRST] + buffers[buffer, SLOTS]:
            if blocks[local[TAKE_AT], FIXED] == 0:
                taken[local[TAKEN], T_BLOCK] = local[TAKE_AT]
                taken[local[TAKEN], T_LOW] = blocks[local[TAKE_AT], LOW]
                local[TAKEN] += 1
                count(local[TAKE_AT], -1)
                blocks[local[TAKE_AT], LOW] = NOWHERE
            local[TAKE_AT] += 1

    @T.inline
    def undo():
        # Each block is taken away from where it is; then each is put back.
        local[UNDO_AT] = 0
        while local[UNDO_AT] < 2 * local[TAKEN]:
            there: T.let[T.int64] = taken[local[UNDO_AT] % local[TAKEN], T_BLOCK]
            local[SIGN] = -1
            if local[UNDO_AT] >= local[TAKEN]:
                local[SIGN] = 1
                blocks[there, LOW] = taken[local[UNDO_AT] % local[TAKEN], T_LOW]
            if blocks[there, LOW] != NOWHERE:
                count(there, local[SIGN])
            if local[SIGN] < 0:
                blocks[there, LOW] = NOWHERE
            local[UNDO_AT] += 1

    @T.inline
    def cost_at(block, eject):
        local[COST_AT] = 0
        local[RELATION_AT] = rows[block]
        while local[RELATION_AT] < rows[block + 1]:
            other: T.let[T.int64] = relations[local[RELATION_AT], OTHER]
            begin: T.let[T.int64] = blocks[other, LOW]
            if (
                begin >= 0
                and begin < local[OFFSET] + blocks[block, SIZE]
                and local[OFFSET] < begin + blocks[other, SIZE]
            ):
                if relations[local[RELATION_AT], HARD] == 1 and (
                    relations[local[RELATION_AT], PARTNER] == 0 or begin != local[OFFSET]
                ):
                    if (
                        eject == 0
                        or blocks[other, OWNER] == blocks[block, OWNER]
                        or blocks[other, FIXED] == 1
                    ):
                        local[COST_AT] = NO_LIMIT
                        break
                    local[COST_AT] += eject
                local[COST_AT] += relations[local[RELATION_AT], PRICE]
                if local[COST_AT] > local[CHEAPEST_COST]:
                    local[COST_AT] = NO_LIMIT
                    break
            local[RELATION_AT] += 1

    @T.inline
    def candidate(block):
        # First zero, then the ends of what is reserved, then two for each relation.
        local[USABLE] = 1
        if local[CANDIDATE] == 0:
            local[OFFSET] = 0
        elif local[CANDIDATE] <= state[RESERVED]:
            local[OFFSET] = reserved[local[CANDIDATE] - 1, END]
        else:
            at: T.let[T.int64] = local[CANDIDATE] - 1 - state[RESERVED]
            relation: T.let[T.int64] = rows[block] + at // 2
            other: T.let[T.int64] = relations[relation, OTHER]
            if blocks[other, LOW] < 0:
                local[USABLE] = 0
            elif at % 2 == 0:
                local[OFFSET] = blocks[other, LOW] + blocks[other, SIZE]
            else:
                local[OFFSET] = blocks[other, LOW]
                if relations[relation, EQUAL] == 0 or local[OFFSET] % blocks[block, ALIGNMENT] != 0:
                    local[USABLE] = 0
        if local[USABLE] == 1:
            if local[OFFSET] % blocks[block, ALIGNMENT] != 0:
                local[OFFSET] = (
                    local[OFFSET]
                    + blocks[block, ALIGNMENT]
                    - local[OFFSET] % blocks[block, ALIGNMENT]
                )
            if local[OFFSET] + blocks[block, SIZE] > state[CAPACITY]:
                local[USABLE] = 0
            local[RESERVED_AT] = 0
            while local[RESERVED_AT] < state[RESERVED]:
                if (
                    reserved[local[RESERVED_AT], BEGIN] < local[OFFSET] + blocks[block, SIZE]
                    and local[OFFSET] < reserved[local[RESERVED_AT], END]
                ):
                    local[USABLE] = 0
                local[RESERVED_AT] += 1

    @T.inline
    def cheapest(block, eject, banned):
        local[TIES] = 0
        local[CHEAPEST] = NOWHERE
        local[CHEAPEST_COST] = NO_LIMIT
        local[CANDIDATE] = 0
        local[CANDIDATES] = 1 + state[RESERVED] + 2 * (rows[block + 1] - rows[block])
        while local[CANDIDATE] < local[CANDIDATES]:
            candidate(block)
            if local[USABLE] == 1 and local[OFFSET] != banned:
                cost_at(block, eject)
                if local[COST_AT] < local[CHEAPEST_COST]:
                    local[TIES] = 1
                    local[CHEAPEST] = local[OFFSET]
                    local[CHEAPEST_COST] = local[COST_AT]
                elif local[COST_AT] == local[CHEAPEST_COST] and local[COST_AT] < NO_LIMIT:
                    local[TIES] += 1
                    draw(local[TIES])
                    if local[DRAWN] == 0:
                        local[CHEAPEST] = local[OFFSET]
            local[CANDIDATE] += 1
        state[NODES] += 1

    @T.inline
    def clear(block):
        local[CLEAR_AT] = rows[block]
        while local[CLEAR_AT] < rows[block + 1] and local[DONE] == 1:
            other: T.let[T.int64] = relations[local[CLEAR_AT], OTHER]
            begin: T.let[T.int64] = blocks[other, LOW]
            if (
                begin >= 0
                and begin < local[CHEAPEST] + blocks[block, SIZE]
                and local[CHEAPEST] < begin + blocks[other, SIZE]
                and relations[local[CLEAR_AT], HARD] == 1
                and (relations[local[CLEAR_AT], PARTNER] == 0 or begin != local[CHEAPEST])
            ):
                if local[OUT] > MOST_OUT:
                    local[DONE] = 0
                else:
                    chosen[local[OUT]] = blocks[other, OWNER]
                    local[OUT] += 1
                    take_out(chosen[local[OUT] - 1])
            local[CLEAR_AT] += 1

    @T.inline
    def sort(begin):
        local[SORT_AT] = begin + 1
        while local[SORT_AT] < local[OUT]:
            local[SORT_TO] = local[SORT_AT]
            while local[SORT_TO] > begin:
                last: T.let[T.int64] = chosen[local[SORT_TO] - 1]
                here: T.let[T.int64] = chosen[local[SORT_TO]]
                if blocks[buffers[last, FIRST], SIZE] >= blocks[buffers[here, FIRST], SIZE]:
                    break
                local[SWAPPED] = here
                chosen[local[SORT_TO]] = last
                chosen[local[SORT_TO] - 1] = local[SWAPPED]
                local[SORT_TO] -= 1
            local[SORT_AT] += 1

    @T.inline
    def put_back():
        local[PUT_AT] = 0
        local[MOVED] = 0
        while local[PUT_AT] < local[OUT] and local[DONE] == 1:
            buffer: T.let[T.int64] = chosen[local[PUT_AT]]
            local[PUT_SLOT] = buffers[buffer, FIRST]
            while (
                local[PUT_SLOT] < buffers[buffer, FIRST] + buffers[buffer, SLOTS]
                and local[DONE] == 1
            ):
                if blocks[local[PUT_SLOT], FIXED] == 0:
                    local[BANNED] = NOWHERE
                    if local[PAY] > 0:
                        local[BANNED] = taken[local[MOVED], T_LOW]
                    cheapest(local[PUT_SLOT], local[PAY], local[BANNED])
                    if local[CHEAPEST] == NOWHERE:
                        local[DONE] = 0
                    elif local[PAY] > 0:
                        clear(local[PUT_SLOT])
                    if local[DONE] == 1:
                        blocks[local[PUT_SLOT], LOW] = local[CHEAPEST]
                        count(local[PUT_SLOT], 1)
                    local[MOVED] += 1
                local[PUT_SLOT] += 1
            if local[PAY] > 0:
                # The first buffer has ejected others, which eject none.
                local[PAY] = 0
                sort(1)
            local[PUT_AT] += 1

    @T.inline
    def choose_more():
        # A buffer that the first one pays for, then buffers related to one that is chosen.
        one: T.let[T.int64] = chosen[0]
        draw(2)
        if local[DRAWN] == 1:
            draw(buffers[one, OWES])
            local[WEIGHTED_LEFT] = local[DRAWN]
            local[WEIGHTED] = due_rows[one]
            while local[WEIGHTED_LEFT] >= 0:
                charge(dues[local[WEIGHTED]])
                local[WEIGHTED_LEFT] -= local[CHARGE]
                local[WEIGHTED] += 1
            due: T.let[T.int64] = dues[local[WEIGHTED] - 1]
            chosen[1] = penalties[due, ONE] + penalties[due, TWO] - one
            local[OUT] = 2
        draw(MOST_OUT - local[OUT] + 1)
        local[EXTRA] = local[DRAWN]
        while local[EXTRA] > 0:
            draw(local[OUT])
            block: T.let[T.int64] = buffers[chosen[local[DRAWN]], FIRST]
            if rows[block] < rows[block + 1]:
                draw(rows[block + 1] - rows[block])
                near: T.let[T.int64] = blocks[relations[rows[block] + local[DRAWN], OTHER], OWNER]
                local[KNOWN] = 0
                while local[KNOWN] < local[OUT]:
                    if chosen[local[KNOWN]] == near:
                        break
                    local[KNOWN] += 1
                if local[KNOWN] == local[OUT]:
                    chosen[local[OUT]] = near
                    local[OUT] += 1
            local[EXTRA] -= 1

    @T.inline
    def shuffle():
        local[SORT_AT] = local[OUT] - 1
        while local[SORT_AT] > 0:
            draw(local[SORT_AT] + 1)
            local[SWAPPED] = chosen[local[SORT_AT]]
            chosen[local[SORT_AT]] = chosen[local[DRAWN]]
            chosen[local[DRAWN]] = local[SWAPPED]
            local[SORT_AT] -= 1

    @T.inline
    def move():
        draw(2)
        local[EJECTING] = local[DRAWN]
        draw(2 * state[TOTAL])
        local[WEIGHTED_LEFT] = local[DRAWN]
        local[WEIGHTED] = 0
        while local[WEIGHTED_LEFT] >= 0:
            local[WEIGHTED_LEFT] -= buffers[local[WEIGHTED], OWES]
            local[WEIGHTED] += 1
        chosen[0] = local[WEIGHTED] - 1
        local[OUT] = 1
        local[TAKEN] = 0
        local[DONE] = 1
        local[PAY] = 0
        if local[EJECTING] == 1:
            draw(EJECTIONS)
            local[PAY] = prices[local[DRAWN]]
        else:
            choose_more()
        local[FIRST_TAKEN] = 0
        while local[FIRST_TAKEN] < local[OUT]:
            take_out(chosen[local[FIRST_TAKEN]])
            local[FIRST_TAKEN] += 1
        if local[EJECTING] == 0:
            draw(5)
            if local[DRAWN] < 2:
                shuffle()
            elif local[DRAWN] < 4:
                sort(0)
        put_back()

    @T.inline
    def remember():
        local[PEAK] = 0
        local[PEAK_AT] = 0
        while local[PEAK_AT] < n0:
            local[PEAK] = T.max(
                local[PEAK], blocks[local[PEAK_AT], LOW] + blocks[local[PEAK_AT], SIZE]
            )
            local[PEAK_AT] += 1
        if state[TOTAL] < state[BEST_COST] or local[PEAK] < state[BEST_PEAK]:
            state[BEST_COST] = state[TOTAL]
            state[BEST_PEAK] = local[PEAK]
            local[PEAK_AT] = 0
            while local[PEAK_AT] < n0:
                blocks[local[PEAK_AT], BEST] = blocks[local[PEAK_AT], LOW]
                local[PEAK_AT] += 1

    local[STEP] = 0
    while local[STEP] < state[STEPS]:
        if state[TOTAL] == 0 or state[NODES] >= state[STOP]:
            break
        local[BEFORE] = state[TOTAL]
        move()
        if local[DONE] == 1 and state[TOTAL] > local[BEFORE]:
            draw(FIXED_POINT)
            if (state[TOTAL] - local[BEFORE]) * FIXED_POINT * FIXED_POINT > state[HEAT] * noise[
                local[DRAWN]
            ]:
                local[DONE] = 0
        if local[DONE] == 0:
            undo()
        elif state[TOTAL] <= state[BEST_COST]:
            remember()
        local[STEP] += 1
