"""The safety rules that `mutation_run` breaks, and the faults that it plants."""

from __future__ import annotations

from mutants import Fault, Rule

from mutations import addresses, layer_group, planning

Entry = Rule | Fault

ALL: tuple[Entry, ...] = (*addresses.ENTRIES, *layer_group.ENTRIES, *planning.ENTRIES)
