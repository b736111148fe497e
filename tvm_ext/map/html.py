# SPDX-License-Identifier: Apache-2.0
"""A memory map as one page: HTML that needs neither a network nor a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

_SCRIPTS = ("model", "view", "colours", "draw", "program", "panel", "main")
"""The parts of the page's script, in the order in which they build upon each other."""


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """Write a memory map's `page_data` as a whole page, with its style, script and data.

    Names of buffers and lines of programs are data to it, whatever they say.
    """
    parts = {
        "{{TITLE}}": escape(f"Memory of {title}"),
        "{{STYLE}}": _part("page.css"),
        "{{SCRIPT}}": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
        "{{DATA}}": _inert(json.dumps(data, separators=(",", ":"))),
    }
    page = _part("page.html")
    # From the end: what is put in is not searched again.
    places = sorted(((page.index(place), place) for place in parts), reverse=True)
    for at, place in places:
        page = page[:at] + parts[place] + page[at + len(place) :]
    return page


def in_a_frame(title: str, page: str) -> str:
    """Write a map's page as an element of another page, such as a notebook.

    The frame has no part in the page around it: its scripts run, and can reach nothing there. A
    notebook that does not trust what it shows leaves it out.
    """
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(f"Memory of {title}")}" '
        f'style="width:100%;height:640px;border:1px solid" srcdoc="{escape(page)}"></iframe>'
    )


def _part(name: str) -> str:
    return (files("tvm_ext.map") / "page" / name).read_text(encoding="utf-8")


def _inert(text: str) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
