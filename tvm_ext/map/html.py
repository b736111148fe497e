# SPDX-License-Identifier: Apache-2.0
"""A memory map as one page: HTML that needs neither a network nor a server."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from tvm_ext.map.model import MemoryMap
from tvm_ext.map.page_data import page_data

_SCRIPTS = ("model", "view", "colours", "draw", "program", "panel", "main")
"""The parts of the page's script, in the order in which they build upon each other."""


def html_page(shown: MemoryMap) -> str:
    """Write a memory map as a page.

    Parameters
    ----------
    shown : MemoryMap
        What to show.

    Returns
    -------
    str
        The whole page, with its style, script and data. Names of buffers and lines of programs
        are data to it, whatever they say.
    """
    parts = {
        "{{TITLE}}": escape(f"Memory of {shown.title}"),
        "{{STYLE}}": _part("page.css"),
        "{{SCRIPT}}": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
        "{{DATA}}": _inert(json.dumps(page_data(shown), separators=(",", ":"))),
    }
    page = _part("page.html")
    # From the end: what is put in is not searched again.
    places = sorted(((page.index(place), place) for place in parts), reverse=True)
    for at, place in places:
        page = page[:at] + parts[place] + page[at + len(place) :]
    return page


def in_a_frame(shown: MemoryMap) -> str:
    """Write a memory map as an element of another page, such as a notebook.

    The frame has no part in the page around it: its scripts run, and can reach nothing there. A
    notebook that does not trust what it shows leaves it out.

    Parameters
    ----------
    shown : MemoryMap
        What to show.
    """
    page = escape(html_page(shown))
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(f"Memory of {shown.title}")}" '
        f'style="width:100%;height:640px;border:1px solid" srcdoc="{page}"></iframe>'
    )


def _part(name: str) -> str:
    return (files("tvm_ext.map") / "page" / name).read_text(encoding="utf-8")


def _inert(text: str) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
