# SPDX-License-Identifier: Apache-2.0
"""Measured plans as the tables of docs/planners.md: a row a planner, the best first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from other_planners import OTHERS

NOT_RUN, NOT_FITTING = "not run", "does not fit"
LONGER_NAMES = {
    "first_fit_by_size": "first fit by size (TensorFlow Lite Micro)",
    "hill_climb": "hill climb (TVM's USMP)",
}
"""What the planners of others are called on the page."""


@dataclass(frozen=True)
class Run:
    """What one planner did with one problem.

    Parameters
    ----------
    planner : str
        The planner's name.
    case : str
        The problem's name.
    kernel : str
        The NPU kernel that it is a memory of.
    buffers : int
        How many buffers it has.
    best_known : int, optional
        The least penalty that is published, None if there is none.
    certified : bool
        Whether that is proven to be the least that there is.
    bound, peak : int
        In bytes.
    penalty : int
        What the plan pays for sharing.
    fits, optimal : bool
        Whether the plan fits the capacity, and whether it is proven to be the best.
    seconds : float
        By the clock.
    """

    planner: str
    case: str
    kernel: str
    buffers: int
    best_known: int | None
    certified: bool
    bound: int
    peak: int
    penalty: int
    fits: bool
    optimal: bool
    seconds: float

    @property
    def ratio(self) -> float:
        """The peak over the lower bound."""
        return self.peak / self.bound if self.bound else 1.0


Table = Callable[[Sequence[Run]], Iterator[str]]


def minimalloc_table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield peak over bound for each instance, and how many fit where a plan is known to."""
    lowest = [run for run in runs if run.case.endswith(" minimise")]
    fitted = grouped((run for run in runs if run.case.endswith(" fit")), "planner")
    letters = [name.split(".")[0] for name in grouped(lowest, "case")]
    yield from header("planner", *letters, "mean", "proven", "s", "fit in 1 MiB", "s")
    for planner, mine in by_quality(lowest, mean_ratio):
        yield row(
            shown(planner),
            *(f"{run.ratio:.4f}" for run in mine),
            f"{mean_ratio(mine):.4f}",
            f"{sum(run.optimal for run in mine)} of {len(mine)}",
            seconds(mine),
            f"{sum(run.fits for run in fitted[planner])} of {len(fitted[planner])}",
            seconds(fitted[planner]),
        )


def models_table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield peak over bound and seconds for each model."""
    names = []
    for name, each in grouped(runs, "case").items():
        names += [f"{name.split('.csv')[0]}: {each[0].buffers:,} buffers", "s"]
    yield from header("planner", *names, "mean", "proven")
    for planner, mine in by_quality(runs, mean_ratio):
        cells = [cell for run in mine for cell in (f"{run.ratio:.4f}", seconds([run]))]
        proven = f"{sum(run.optimal for run in mine)} of {len(mine)}"
        yield row(shown(planner), *cells, f"{mean_ratio(mine):.4f}", proven)


def kernels_table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the penalties of NPU kernels, and how often the least that is published is reached."""
    known = published(next(iter(grouped(runs, "planner").values())))
    yield from header(
        "planner",
        "memories that fit",
        f"penalty of {len(known)} kernels",
        "at the published one, or below",
        "proven",
        "peak over bound",
        "s",
    )

    def quality(mine: Sequence[Run]) -> tuple[int, int, float]:
        return sum(not run.fits for run in mine), *penalty_and_ratio(mine)

    def penalty_and_ratio(mine: Sequence[Run]) -> tuple[int, float]:
        kernels = grouped(mine, "kernel")
        penalty = sum(run.penalty for name in known for run in kernels[name])
        return penalty, mean_ratio([run for run in mine if run.fits])

    for planner, mine in by_quality(runs, quality):
        kernels = grouped(mine, "kernel")
        fit = [name for name in known if all(run.fits for run in kernels[name])]
        reached = sum(sum(run.penalty for run in kernels[name]) <= known[name] for name in fit)
        penalty, ratio = penalty_and_ratio(mine)
        yield row(
            shown(planner),
            f"{sum(run.fits for run in mine)} of {len(mine)}",
            f"{penalty:,}" if len(fit) == len(known) else f"{len(fit)} kernels fit",
            f"{reached} of {len(known)}",
            f"{sum(run.optimal for run in mine)} of {len(mine)}",
            f"{ratio:.3f}",
            seconds(mine),
        )
    certified = {run.kernel for run in runs if run.certified}
    yield ""
    yield (
        f"Published for these kernels, not measured here: a penalty of {sum(known.values()):,} on "
        f"the {len(known)} for which there is a plan, certified to be the least on "
        f"{len(certified)}."
    )


def penalties_table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the penalty for each instance, and their mean over the best that is published."""
    letters = [name.split("_")[2] for name in grouped(runs, "kernel")]
    yield from header("planner", *letters, "mean over the best published", "s a plan")

    def quality(mine: Sequence[Run]) -> tuple[int, float]:
        return sum(not run.fits for run in mine), over_published(mine)

    for planner, mine in by_quality(runs, quality):
        fit = all(run.fits for run in mine)
        yield row(
            shown(planner),
            *(f"{run.penalty:,}" if run.fits else NOT_FITTING for run in mine),
            f"{over_published(mine):.3f}" if fit else "",
            f"{sum(run.seconds for run in mine) / len(mine):.2f}",
        )


def growth_table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a table a share of buffers that are live at once: peak over bound, and seconds."""
    planners, counts = grouped(runs, "planner"), grouped(runs, "buffers")
    common = {
        count
        for count, each in counts.items()
        if grouped(each, "planner").keys() == planners.keys()
    }

    def quality(mine: Sequence[Run]) -> float:
        return mean_ratio([run for run in mine if run.buffers in common])

    for at, (share, alike) in enumerate(by_share(runs).items()):
        yield from ("", f"{share}:", "") if at else (f"{share}:", "")
        yield from header("planner", *(f"{count:,} buffers" for count in counts))
        for planner, mine in by_quality(alike, quality):
            found = {run.buffers: f"{run.ratio:.4f} in {seconds([run])} s" for run in mine}
            yield row(shown(planner), *(found.get(count, NOT_RUN) for count in counts))


def by_share(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs on growing tables by the second part of the tables' names."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.case.split(" buffers, ")[1], []).append(run)
    return groups


def published(runs: Iterable[Run]) -> dict[str, int]:
    """Return the least penalty that is published, by kernel, without those that have none."""
    found: dict[str, int] = {}
    for kernel, each in grouped(runs, "kernel").items():
        known = [run.best_known for run in each if run.best_known is not None]
        if len(known) == len(each):
            found[kernel] = sum(known)
    return found


def over_published(runs: Sequence[Run]) -> float:
    """Return the geometric mean of (penalty + 1) / (published penalty + 1)."""
    return geometric_mean((run.penalty + 1) / ((run.best_known or 0) + 1) for run in runs)


def mean_ratio(runs: Sequence[Run]) -> float:
    """Return the geometric mean of peak over bound."""
    return geometric_mean(run.ratio for run in runs) if runs else 1.0


def by_quality(
    runs: Iterable[Run], quality: Callable[[Sequence[Run]], object]
) -> list[tuple[str, list[Run]]]:
    """Return the runs by planner: those of the best planner first, of equals the fastest."""

    def key(entry: tuple[str, list[Run]]) -> tuple[object, float]:
        worth = quality(entry[1])
        rounded = round(worth, 4) if isinstance(worth, float) else worth
        return rounded, sum(run.seconds for run in entry[1])

    return sorted(grouped(runs, "planner").items(), key=key)


def grouped(runs: Iterable[Run], field: str) -> dict[str, list[Run]]:
    """Return the runs by one of their fields, in the order in which they were made."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(getattr(run, field), []).append(run)
    return groups


def shown(planner: str) -> str:
    """Return what a planner is called on the page: ours as in the code."""
    return LONGER_NAMES[planner] if planner in OTHERS else f"`{planner}`"


def seconds(runs: Iterable[Run]) -> str:
    total = sum(run.seconds for run in runs)
    return f"{total:.2f}" if total < 10 else f"{total:.1f}"


def header(first: str, *others: str) -> Iterator[str]:
    yield row(first, *others)
    yield row("---", *("---:" for _ in others))


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TABLES: Mapping[str, Table] = {
    "minimalloc": minimalloc_table,
    "models": models_table,
    "ascend": kernels_table,
    "penalties": penalties_table,
    "growth": growth_table,
}
"""By the name of a set, which is that of the comments in the page."""
