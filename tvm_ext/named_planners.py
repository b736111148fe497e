# SPDX-License-Identifier: Apache-2.0
"""Planners as a user names them: one of ours, or a function of the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

# These features have planners of their own, and declare them on import.
import passes.ascend  # noqa: F401
import passes.gmem  # noqa: F401
import passes.layer_group  # noqa: F401
import passes.storage_rewrite  # noqa: F401
from passes.planning import Problem, planner_names, register

EVERY = "all"
"""Stands for all planners that are made for a problem."""

STOCK = "stock"
"""Asks for TVM's own plan where the name of a planner stands."""

FOR_LEVELS = ("three_level", "three_level_mirror")
"""Planners that choose the reuse levels of an Ascend core."""


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names, also between commas, in order and each once; ValueError if one is no text."""
    texts = [names] if isinstance(names, str) else names
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected a name or several, got {names!r}")
    split = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in split if name))


def known_planners(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the planners that a user names, `EVERY` as it is; ValueError if one is unknown."""
    found = tuple(name if name == EVERY else known_planner(name) for name in listed(names))
    if not found:
        raise ValueError(f"name a planner; there are: {', '.join(planner_names())}; or {EVERY!r}")
    return found


def compared_planners(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return `known_planners` of a table, which shows `STOCK` whether or not it is named."""
    return known_planners([name for name in listed(names) if name != STOCK])


def known_planner(name: str) -> str:
    """Return the name of a planner; ``module:function`` is imported and registered under it.

    The module is looked for in the working directory too. Raises ValueError when there is none.
    """
    known = planner_names()
    if name in known:
        return name
    if ":" not in name:
        raise ValueError(
            f"unknown planner {name!r}; there are: {', '.join(known)}; "
            "one of your own is named as module:function"
        )
    module, _, function = name.partition(":")
    sys.path.append(str(Path.cwd()))
    try:
        run = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"planner {name!r}: cannot import {module!r}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(run):
        raise ValueError(f"planner {name!r}: module {module!r} has no function {function!r}")
    register(name)(run)
    return name


def planners_for(problem: Problem, asked: Sequence[str], *, graph: bool = False) -> list[str]:
    """Return the planners to ask about a problem; `EVERY` stands for those that are made for it.

    `graph` is whether the buffers are the tensors between the operators of a network.
    """
    if EVERY not in asked:
        return list(asked)
    left_out = {"bump", "lmem"}  # One lets nothing share memory, the other is for slices.
    if not any(buffer.use is not None for buffer in problem.buffers):
        left_out.update(FOR_LEVELS)
    if not graph:
        left_out.add("rec_tbl")  # It follows the operators of a network.
    made = [name for name in planner_names() if name not in left_out]
    return list(dict.fromkeys([*made, *(name for name in asked if name != EVERY)]))
