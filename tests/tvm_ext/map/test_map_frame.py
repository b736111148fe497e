# SPDX-License-Identifier: Apache-2.0
"""The page of a memory map in a frame, as a notebook shows it."""

from __future__ import annotations

import tvm_ext
from tvm_ext import Buffer, Problem

PROBLEM = Problem((Buffer("one", 4096, ((0, 3),), slots=2), Buffer("other", 64, ((2, 5),))))


def test_the_page_works_in_a_notebook(browser, tmp_path):
    # As a server of notebooks may say: scripts of the page itself, and nothing from elsewhere.
    policy = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'"
    page = tmp_path / "notebook.html"
    page.write_text(
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<body>{tvm_ext.map_of_problem(PROBLEM)._repr_html_()}</body>"
    )
    browser.get_log("browser")
    browser.get(page.as_uri())
    browser.switch_to.frame(0)
    assert "other" in browser.execute_script("return document.body.innerText")
    assert browser.execute_script(
        "const c = document.querySelector('canvas'); return c.width * c.height"
    )
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []
