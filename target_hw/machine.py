# SPDX-License-Identifier: Apache-2.0
"""The speed of a chip's pipelines, as plain data: all that a simulation needs.

A chip has pipes that run side by side, each one instruction after the other. Nothing here imports
TVM. The figures describe a machine well enough to compare plans for one kernel; they do not say
how long that kernel takes on the chip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from target_hw.memory import Facts, as_map, checked_number, named_integers, read_feature, repeated

UNITS = ("bytes", "elements", "multiply-adds")
"""The units of a pipe's work."""

Rates = Facts
"""Rates that hold in special cases: the case and the units of work in a cycle."""

_RATES = ("to_scope", "at_bits")


@dataclass(frozen=True)
class Pipe:
    """One pipeline: how long an instruction of so much work takes on it.

    A ValueError, which names the pipe and the field, is raised if a figure is impossible.
    """

    name: str
    """MTE1, MTE2, MTE3, FIX, V, M or S on an Ascend chip."""
    unit: str
    """The unit of its work, one of `UNITS`."""
    rate: int
    """Units of work in a cycle."""
    startup: int = 0
    """Cycles that each instruction takes besides."""
    to_scope: Rates = ()
    """Rates by the storage scope that is written, such as ``local.L0A``, where they differ; a map
    or pairs, kept as pairs."""
    at_bits: Rates = ()
    """Rates by the width of an element in bits, such as ``16``, where they differ; kept sorted. A
    width that is not listed counts as the next one above it, one above all as the widest."""
    basis: str = "estimate"
    """The source of the figures, or that they are an estimate."""

    def __post_init__(self) -> None:
        where = f"pipe {self.name!r}"
        if self.unit not in UNITS:
            raise ValueError(f"{where}: unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        to_scope, at_bits = (named_integers(where, f, getattr(self, f), least=1) for f in _RATES)
        for bits, _ in at_bits:
            if not bits.isdecimal() or int(bits) < 1:
                raise ValueError(f"{where}: at_bits must be widths in bits, got {bits!r}")
        by_width = tuple(sorted(at_bits, key=lambda case: int(case[0])))
        object.__setattr__(self, "rate", checked_number(where, "rate", self.rate, 1))
        object.__setattr__(self, "startup", checked_number(where, "startup", self.startup, 0))
        object.__setattr__(self, "to_scope", to_scope)
        object.__setattr__(self, "at_bits", by_width)

    def cycles(self, work: int, element_bits: int = 8, scopes: tuple[str, ...] = ()) -> int:
        """Return how many cycles an instruction of so much `work` takes, at least one.

        `element_bits` are those of what is computed on, `scopes` the storage scopes that are
        written: the slowest that has a rate of its own counts.
        """
        rate = self.rate
        if rates := [rate for scope, rate in self.to_scope if scope in scopes]:
            rate = min(rates)
        elif self.at_bits:
            wide_enough = (rate for bits, rate in self.at_bits if element_bits <= int(bits))
            rate = next(wide_enough, self.at_bits[-1][1])
        return max(1, self.startup + -(-work // rate))


@dataclass(frozen=True)
class Machine:
    """The pipes of a chip; ValueError if two have one name, or a scope is given to two cores."""

    pipes: tuple[Pipe, ...]
    cores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For separate cores that have pipes of the same name: the name of each core and the
    storage scopes that are its own. An instruction runs on the core whose scopes it touches."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pipes", tuple(self.pipes))
        for pipe in self.pipes:
            if not isinstance(pipe, Pipe):
                raise ValueError(f"machine: needs Pipes, got {pipe!r}")
        cores = tuple((str(name), tuple(scopes)) for name, scopes in self.cores)
        object.__setattr__(self, "cores", cores)
        for what, names in (
            ("pipe", [pipe.name for pipe in self.pipes]),
            ("core", [name for name, _ in self.cores]),
            ("core's scope", [scope for _, scopes in self.cores for scope in scopes]),
        ):
            if twice := repeated(names):
                raise ValueError(f"machine: {what} {twice!r} is given twice")

    def __iter__(self) -> Iterator[Pipe]:
        return iter(self.pipes)

    def __contains__(self, name: object) -> bool:
        return any(pipe.name == name for pipe in self)

    def __getitem__(self, name: str) -> Pipe:
        """Return the pipe called `name`; ValueError with the known names otherwise."""
        for pipe in self.pipes:
            if pipe.name == name:
                return pipe
        names = ", ".join(pipe.name for pipe in self) or "none"
        raise ValueError(f"machine: no pipe {name!r}; it has: {names}")

    def core_of(self, scopes: tuple[str, ...]) -> str | None:
        """Return the core to which one of the scopes belongs, the first that does; None if none."""
        return next((core for core, own in self.cores if not set(own).isdisjoint(scopes)), None)

    def with_pipe(self, pipe: Pipe) -> Machine:
        """Return a copy where `pipe` stands for the pipe of its name, or is added at the end."""
        by_name = {**{old.name: old for old in self}, pipe.name: pipe}
        return replace(self, pipes=tuple(by_name.values()))

    def to_feature(self) -> dict[str, Any]:
        """Return plain data for a target's ``feature.machine``; `from_feature` reads it."""
        pipes = {pipe.name: asdict(pipe) for pipe in self}
        for described in pipes.values():
            del described["name"]
            described.update({field: dict(described[field]) for field in _RATES})
        return {"pipes": pipes, "cores": {name: list(scopes) for name, scopes in self.cores}}

    @classmethod
    def from_feature(cls, feature: object) -> Machine:
        """Read what `to_feature` writes; fields at their defaults may be left out."""
        plain = as_map("machine", feature, ("pipes", "cores"))
        pipes, known = [], [field.name for field in fields(Pipe)[1:]]
        for name, entry in as_map("machine: pipes", plain.get("pipes", {})).items():
            where = f"pipe {name!r}"
            given = as_map(where, entry, known)
            for field in ("unit", "rate"):
                if field not in given:
                    raise ValueError(f"{where}: {field} is missing")
            pipes.append(Pipe(name, **given))
        cores = as_map("machine: cores", plain.get("cores", {}))
        return cls(tuple(pipes), tuple((core, tuple(map(str, own))) for core, own in cores.items()))

    @classmethod
    def from_target(cls, target: object) -> Machine:
        """Read the machine that a target carries in ``feature.machine``.

        TypeError is raised when `target` is no target; ValueError when it describes no machine.
        """
        hint = (
            "carries no description of its pipelines (feature.machine); "
            "add one with target_hw.with_machine"
        )
        return read_feature(target, "machine", "machine", hint, cls.from_feature)
