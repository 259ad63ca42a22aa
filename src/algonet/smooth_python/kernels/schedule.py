"""What a CPU kernel does for each block of items, in order: instructions whose operands are slots of a small buffer.

A program names a row for each instruction, thousands of them; a block of each would not stay in the cache. Most are read once
or twice, soon after they were made, so rows share slots as registers are shared: a slot is free again after its row's last
reader. Backward runs the program once more and keeps in slots of their own only the rows that some gradient reads; gradients
have slots likewise, from the last reader of a row (the first to add to it) to the row itself. Rows that no wanted row depends
on take no part, nor gradients of what depends on neither inputs nor steepness.
"""

from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

#: Columns of a table of instructions: how many rows it reads; whether it reads an input, or a steepness; whether its slope is
#: kept beside its value; for each of three operands, which values its gradient reads (1, 2, 4 for a, b, c), -1 if it has none.
ROWS, FROM_INPUT, FROM_STEEPNESS, KEEPS_SLOPE, GRADIENTS = 0, 1, 2, 3, 4
READS_Y, READS_SLOPE = 8, 16
#: Columns of a forward step (instruction, slot of its row, its three operands) and of a backward one.
STEP, PULL = 5, 8


@njit()
def _with_sources(marked, program, table):
    """The marked rows and all that they depend on."""
    found = marked.copy()
    for k in range(program.shape[0] - 1, -1, -1):
        if found[k]:
            for j in range(table[program[k, 0], ROWS]):
                found[program[k, 1 + j]] = 1
    return found


@njit()
def _free_slot(free, spare, count):
    """A slot (the latest of the `spare` free ones, or a new one), how many free ones are left, and how many there are."""
    if spare:
        return free[spare - 1], spare - 1, count
    return count, spare, count + 1


@njit()
def _steps(program, used, stays, slopes, table):
    """Steps that make all used rows, their slots, and how many slots there are. Rows that stay keep theirs; slopes get one."""
    length = program.shape[0]
    last, slots, slope_slots, free = np.full((4, length + 1), -1, dtype=np.int32)
    for k in range(length):
        if used[k]:
            for j in range(table[program[k, 0], ROWS]):
                last[program[k, 1 + j]] = k
    steps = np.empty((used.sum(), STEP), dtype=np.int32)
    spare, count, made = 0, 0, 0
    for k in range(length):
        if not used[k]:
            continue
        code = program[k, 0]
        reads = table[code, ROWS]
        # Before the operands' are free: what is written must not be what is read
        slots[k], spare, count = _free_slot(free, spare, count)
        steps[made, 0], steps[made, 1] = code, slots[k]
        for j in range(3):
            row = program[k, 1 + j]
            steps[made, 2 + j] = slots[row] if j < reads else row
        if slopes[k]:
            slope_slots[k] = steps[made, 4] = count
            count += 1
        elif table[code, KEEPS_SLOPE]:
            steps[made, 4] = -1
        made += 1
        for j in range(reads):
            row = program[k, 1 + j]
            if last[row] == k and not stays[row]:
                # An operand that is read twice is freed once
                last[row] = -1
                free[spare] = slots[row]
                spare += 1
        if last[k] < 0 and not stays[k]:
            free[spare] = slots[k]
            spare += 1
    return steps, slots, slope_slots, count


@njit(cache=True)
def forward_schedule(program, wanted, table):
    """((steps, slots of the wanted rows), (number of steps, of slots))."""
    none, stays = np.zeros((2, program.shape[0]), dtype=np.uint8)
    stays[wanted] = 1
    steps, slots, _, count = _steps(program, _with_sources(stays, program, table), stays, none, table)
    return (steps, slots[wanted]), (len(steps), count)


@njit()
def _pulls(program, wanted, table, of_input, of_steepness):
    """Which operands of rows get a gradient: they depend on what asks for one, and wanted rows depend on them by slopes."""
    length = program.shape[0]
    pulls = np.zeros((length, 3), dtype=np.uint8)
    active, reached = np.zeros((2, length), dtype=np.uint8)
    for k in range(length):
        code = program[k, 0]
        asked = (of_input and table[code, FROM_INPUT]) or (of_steepness and table[code, FROM_STEEPNESS])
        for j in range(3):
            if table[code, GRADIENTS + j] >= 0:
                pulls[k, j] = active[program[k, 1 + j]] if j < table[code, ROWS] else asked
                active[k] |= pulls[k, j]
    reached[wanted] = 1
    for k in range(length - 1, -1, -1):
        pulls[k] *= reached[k]
        for j in range(table[program[k, 0], ROWS]):
            reached[program[k, 1 + j]] |= pulls[k, j]
    return pulls


@njit(cache=True)
def backward_schedule(program, wanted, table, of_input, of_steepness):
    """((steps, backward steps, slots of the wanted rows' gradients or -1), (number of steps, of slots, of backward steps, of
    gradients that come in, of slots of gradients)).

    A backward step is (3 instruction + operand, slot of the row's gradient, slot or place of the operand's, slots of a, b, c
    and of the row or its slope, whether the operand's slot has a part of its gradient already).
    """
    length = program.shape[0]
    wants = _pulls(program, wanted, table, of_input, of_steepness)
    saved, sloped = np.zeros((2, length), dtype=np.uint8)
    for k in range(length):
        code = program[k, 0]
        for j in range(3):
            if wants[k, j]:
                reads = table[code, GRADIENTS + j]
                for operand in range(table[code, ROWS]):
                    if reads & (1 << operand):
                        saved[program[k, 1 + operand]] = 1
                saved[k] |= (reads & READS_Y) > 0
                sloped[k] |= (reads & READS_SLOPE) > 0
    needed = _with_sources(saved | sloped, program, table)
    steps, slots, slope_slots, size = _steps(program, needed, saved, sloped, table)

    pulls = np.empty((wants.sum(), PULL), dtype=np.int32)
    places, free = np.full((2, length + 1), -1, dtype=np.int32)
    spare, used, made = 0, 0, 0
    for row in wanted:
        if wants[row].any() and places[row] < 0:
            places[row] = used
            used += 1
    seeds, seeded = places[wanted], used
    for k in range(length - 1, -1, -1):
        code = program[k, 0]
        for j in range(3):
            row = program[k, 1 + j]
            if not wants[k, j]:
                continue
            place, started = row, 1
            if j < table[code, ROWS]:
                if places[row] < 0:
                    places[row], spare, used = _free_slot(free, spare, used)
                    started = 0
                place = places[row]
            pulls[made, 0], pulls[made, 1], pulls[made, 2], pulls[made, 7] = 3 * code + j, places[k], place, started
            for operand in range(3):
                row = program[k, 1 + operand]
                pulls[made, 3 + operand] = slots[row] if operand < table[code, ROWS] else row
            pulls[made, 6] = slope_slots[k] if table[code, KEEPS_SLOPE] else slots[k]
            made += 1
        if places[k] >= 0:
            free[spare] = places[k]
            spare += 1
    return (steps, pulls, seeds), (len(steps), size, made, seeded, used)
