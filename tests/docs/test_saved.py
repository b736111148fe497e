# SPDX-License-Identifier: Apache-2.0
"""Tables of the pages, measured again, and how lines of a page are replaced."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import saved
from marked_lines import lines_of, with_lines
from sweeps import sample

from tvm_ext import workloads

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "savings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sample(("squeezenet", "llama", "clip"), "squeezenet"))
def test_a_row_is_what_is_measured(name):
    assert saved.line(name, saved.measured(name)) in PAGE.splitlines()


def test_the_rows_in_the_readme_are_those_of_the_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert lines_of(readme, saved.NAME) == list(saved.shortened(lines_of(PAGE, saved.NAME)))
    assert all(f"| {name} |" in readme for name in saved.CHOSEN)


def test_every_network_is_in_the_table():
    table = "\n".join(lines_of(PAGE, saved.NAME))
    rows = re.findall(r"^\| (\w+) \|", table, re.M)
    assert rows == ["network", *workloads.NETWORKS]


def test_the_picture_of_savings_shows_the_bytes_of_its_table(tmp_path, monkeypatch, capsys):
    name, script = "squeezenet_stock_and_best.svg", ROOT / "docs" / "make_pictures.py"
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), name, "--folder", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    (row,) = re.findall(r"^\| squeezenet \|.*", PAGE, re.M)
    assert (
        re.findall(r"([\d,]+) bytes", capsys.readouterr().out) == re.findall(r"[\d,]{7,}", row)[:2]
    )
    assert (tmp_path / name).read_text().startswith("<svg")


ORDERED = (
    "nasnet_cifar,nasnet_imagenet,amoeba_cifar,amoeba_imagenet,randwire_0,randwire_1,"
    "unet_plus_plus,train_mlp,train_transformer,llama_layer,mobilenet_v2,bert_base"
)
TABLES = (
    ("docs/savings.md", "| network | what it is", "saved.py"),
    ("docs/ascend.md", "| Kernel | Size", "ascend.py --tiles 17"),
    ("docs/ascend.md", "| Queries | Keys", "what_fits.py --attention"),
    ("docs/gmem.md", "| network | captured", "gpu_networks.py"),
    ("docs/gmem.md", "| model | pool", "gpu_networks.py --server"),
    ("docs/layer_group.md", "| network | one core", "layer_group.py --only cores"),
    ("docs/order.md", "| network | operators", f"order.py --networks {ORDERED}"),
    ("docs/shared_memory.md", "| kernel | sum", "shared_memory.py --dlight"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "begin", "command"), TABLES)
def test_a_command_prints_what_stands_in_a_table(page, begin, command):
    table = (ROOT / page).read_text(encoding="utf-8").split(begin)[1].partition("\n\n")[0]
    words = [sys.executable, *f"benchmarks/{command}".split()]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    # Numbers of three digits or more, which seconds do not have, after the names of the rows.
    numbers = re.compile(r"\d[\d,.]*\d[\d,.]*\d")
    said = numbers.findall(re.sub(r"^\|[^|]*\|", "", table, flags=re.M))
    assert len(said) > 10
    assert set(said) <= set(numbers.findall(printed))


MARKED = "above\n<!-- a: begin -->\nold\n<!-- a: end -->\nbelow\n<!-- b: begin --><!-- b: end -->\n"


def test_the_lines_are_replaced_and_nothing_else():
    page = with_lines(MARKED, "a", ["new", "", "lines"])
    assert page == MARKED.replace("\nold\n", "\n\nnew\n\nlines\n\n")
    assert lines_of(page, "a") == ["new", "", "lines"]
    assert lines_of(page, "b") == []
    assert with_lines(page, "a", lines_of(page, "a")) == page


@pytest.mark.parametrize(
    "page",
    ["no table", "<!-- a: begin -->", "<!-- a: end --><!-- a: begin -->", MARKED + MARKED],
)
def test_a_page_without_both_comments_is_refused(page):
    with pytest.raises(ValueError, match="the page must have <!-- a: begin --> once"):
        with_lines(page, "a", [])
