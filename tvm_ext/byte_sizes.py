# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people read and write them: ``1.25 MiB``."""

from __future__ import annotations

import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([a-zA-Z]*)")


def format_bytes(value: int) -> str:
    """Return a number of bytes, rounded, in the largest binary unit it fills: ``1.25 MiB``."""
    exponent = 0
    text = str(value)
    while float(text) >= 1024 and exponent + 1 < len(_UNITS):  # as written: never 1024 KiB
        exponent += 1
        scaled = value / (1 << 10 * exponent)
        # Three digits say enough.
        text = f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {_UNITS[exponent]}"


def parse_bytes(text: str) -> int:
    """Read a number of bytes: ``4096``, ``192KiB``, ``1.5 MiB``; case does not count.

    Raises ValueError when it is none, or no whole number of bytes.
    """
    units = {unit.lower(): 1 << 10 * power for power, unit in enumerate(_UNITS)}
    found = _SIZE.fullmatch(text.strip())
    unit = units.get(found[3].lower() or "b") if found else None
    if found is None or unit is None:
        raise ValueError(f"expected bytes such as 4096, 192KiB or 1.5MiB, got {text!r}")
    whole, part = found[1], found[2] or ""
    tenths: int = 10 ** len(part)
    count, rest = divmod(int(whole + part) * unit, tenths)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return count
