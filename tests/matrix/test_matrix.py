# SPDX-License-Identifier: Apache-2.0
"""Every way to reach a buffer, in every form of a plan, of every type, for every target.

A cell is built, and run where its target runs: it gives numpy's numbers, or the form refuses it in
a sentence that ``forms.REFUSALS`` knows. Nothing is asked of a cell that TVM itself cannot build,
or gets wrong, when each buffer has memory of its own; that is found out by building it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import sweeps
import tvm
from forms import APART, FORMS, STOCK, Form, is_known
from targets import TARGETS
from ways import (
    LENGTH,
    PLACES,
    ROUNDS,
    THREADS,
    TYPES,
    WAYS,
    arguments,
    load_c_functions,
    module_of,
    result_type,
    rounds_of,
)

Cell = tuple[str, str, str]
"""The way, where it stands, and the type of the elements."""

RIGHT, WRONG, REFUSED, FAILS = "right", "wrong numbers", "refused", "fails"


def outcome(cell: Cell, form: Form, target: str) -> tuple[str, str]:
    """Build a cell, run it where its target runs, and say how that ended, and what was said."""
    way, place, dtype = cell
    at = TARGETS[target]
    try:
        mod = module_of(way, place, dtype, "shared" if at.is_gpu else "local.UB")
        with form.within():
            built = at.build(mod, form.target or at.target, form.pipeline)
    except ValueError as error:
        return REFUSED, str(error)
    except Exception as error:  # TVM raises whatever it stumbles on
        return FAILS, str(error).strip().splitlines()[-1]
    if not at.runs:
        return RIGHT, ""
    given, expected = arguments(dtype)
    result = tvm.runtime.tensor(np.zeros(LENGTH * ROUNDS, result_type(dtype)))
    try:
        built["main"](tvm.runtime.tensor(given), result, tvm.runtime.tensor(np.ones(1, "int32")))
    except Exception as error:
        return FAILS, str(error).strip().splitlines()[-1]
    count = LENGTH * rounds_of(place)
    is_right = np.array_equal(result.numpy()[:count], expected[:count])
    return (RIGHT, "") if is_right else (WRONG, str(result.numpy()[:count]))


@cache
def by_tvm(cell: Cell, form: Form, target: str) -> str:
    """Return how a cell ends without us."""
    return outcome(cell, form, target)[0]


def judged(cell: Cell, form: str, target: str) -> tuple[str, str]:
    """Return how a cell ends, and what is wrong with that, which may be nothing."""
    if by_tvm(cell, STOCK if FORMS[form].mirrors else APART, target) != RIGHT:
        return "not built by TVM", ""
    kind, said = outcome(cell, FORMS[form], target)
    is_allowed = kind == RIGHT or (kind == REFUSED and is_known(form, cell[0], said))
    return kind, "" if is_allowed else f"{' | '.join((*cell, form, target))}: {kind}: {said}"


def whole(target: str, form: str) -> Iterator[Cell]:
    """Yield all cells of a target and a form: each type in a loop, and each place for two types.

    Where a place is built is one thing for all compilers of a CPU, so LLVM's stands for them.
    """
    if target != "llvm":
        place = THREADS if TARGETS[target].is_gpu else "in a loop"
        yield from ((way, place, dtype) for way in WAYS for dtype in TYPES)
        return
    for way in WAYS:
        for place in PLACES:
            # At an address, iterations of a parallel loop would need a core each, and slots would
            # need a code generator that takes them in turns.
            is_addressed = form.endswith("address")
            if place == THREADS or (is_addressed and ("parallel" in place or "slots" in place)):
                continue
            types = TYPES if place == "in a loop" else ("float32", "int8")
            yield from ((way, place, dtype) for dtype in types)


def sample(target: str, form: str) -> Iterator[Cell]:
    """Yield a fixed slice of the cells: of each way, one cell, for a part of the forms."""
    cells = list(whole(target, form))
    part = 16 if target == "llvm" else 90
    for at, way in enumerate(WAYS):
        of_way = [cell for cell in cells if cell[0] == way]
        if (at + list(FORMS).index(form)) % part == 0:
            yield of_way[(7 * at) % len(of_way)]


CASES = [
    pytest.param(form, target, id=f"{target}-{form}")
    for target in TARGETS
    for form in FORMS
    if (FORMS[form].on_gpus or not TARGETS[target].is_gpu)
    and (FORMS[form].target is None or target == "llvm")
]


@pytest.mark.parametrize("cells", sweeps.sample((sample, whole), sample))
@pytest.mark.parametrize(("form", "target"), CASES)
def test_cells(form: str, target: str, cells: Callable[[str, str], Iterator[Cell]]):
    load_c_functions()
    ends: Counter[str] = Counter()
    faults = []
    for cell in cells(target, form):
        kind, fault = judged(cell, form, target)
        ends[kind] += 1
        faults += [fault] if fault else []
    print(f"{target}, {form}: {dict(ends)}")
    assert not faults, "\n".join(faults)
