# SPDX-License-Identifier: Apache-2.0
"""What the page draws at several widths, light and dark: boxes, rectangles and pixels."""

from __future__ import annotations

import itertools
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from xml.etree import ElementTree

import pytest

from passes.planning import Buffer, Problem, solve
from target_hw.memory import MemoryScope
from tvm_ext.report import Axis, MemoryView, PlannedProblem, Report
from tvm_ext.report.memory_view import BufferNote, written

SIZES = ((390, 844), (1400, 900), (2560, 1300))
SOME = [SIZES[0], *(pytest.param(*size, marks=pytest.mark.slow) for size in SIZES[1:])]
THEMES = ("light", "dark")


def overlap(one, two) -> bool:
    return (
        min(one["right"], two["right"]) - max(one["left"], two["left"]) > 0.5
        and min(one["bottom"], two["bottom"]) - max(one["top"], two["top"]) > 0.5
    )


def near(colour, wanted, most=3) -> bool:
    return all(abs(a - b) <= most for a, b in zip(colour, wanted, strict=True))


@pytest.mark.parametrize(("width", "height"), SOME)
def test_a_map_is_in_sight_and_drawn(open_page, network, width, height):
    page = open_page(network)
    for theme in THEMES:
        page.at_size(width, height, theme)
        rects = page.read(
            "#program, #live, .plan, #panel",
            "({ id: e.id || 'plan', ...e.getBoundingClientRect().toJSON() })",
        )
        seen = [rect for rect in rects if rect["width"]]
        for one, two in itertools.combinations(seen, 2):
            assert not overlap(one, two), (one, two)
        for rect in seen:  # Nothing is cut off at an edge of the window.
            assert min(rect["left"], rect["top"]) >= 0, rect
            assert rect["right"] <= width + 0.5, rect
            assert rect["bottom"] <= height + 0.5, rect
        plans = page.read(".plan .map", "e.getBoundingClientRect().toJSON()")
        assert len(plans) == 2
        assert sum(plan["width"] for plan in plans) >= width / 3
        assert all(plan["height"] >= 300 for plan in plans)
        assert page.run("return document.documentElement.scrollWidth") <= width
        panel = page.read("#panel", "[e.scrollWidth, e.clientWidth]")[0]
        assert panel[0] <= panel[1]
        page.run("memoryMap.page.goToPeak()")
        page.settle()
        fill = page.colour("strong")
        for at, placement in enumerate(network.memories[0].plans):
            box = page.boxes(placement.peak().live[0], at)[0]
            place = plans[at]
            right = min(box["x"] + box["width"], place["right"]) - place["left"] - 6
            middle = box["y"] + box["height"] / 2 - place["top"]
            (pixel,) = page.pixels(at, right, middle + 5, 1, 1)
            assert near(pixel, fill), (theme, pixel, fill)


def test_labels_can_be_read_on_every_colour(open_page, kernel):
    page = open_page(kernel)
    for theme in THEMES:
        page.at_size(1400, 900, theme)
        least = page.run(
            """
            const { page } = memoryMap, found = [];
            const style = getComputedStyle(document.documentElement);
            const parts = (colour) => colour
              .replace(/var\\((.*)\\)/, (_, name) => style.getPropertyValue(name))
              .match(/[0-9a-f]{2}/g).map((one) => parseInt(one, 16));
            const light = (rgb) => rgb.map((one) => one / 255)
              .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
              .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
            for (const [, , classes] of page.ways) {
              for (const { fill, ink } of classes) {
                const [a, b] = [fill, ink].map(parts).map(light).sort((one, two) => two - one);
                found.push((a + 0.05) / (b + 0.05));
              }
            }
            return Math.min(...found);
            """
        )
        assert least >= 4.5, theme


def tied() -> Report:
    """Five positions; the first, third and fifth reach the peak, with different buffers."""
    buffers = [
        Buffer("transformer_blocks_0_attention_query_projection_weight", 96, ((0, 1),)),
        Buffer("model.layers.1.self_attn.rotary_embedding.cosine_table", 64, ((1, 2),)),
        Buffer("second", 96, ((2, 3),)),
        Buffer("small", 32, ((3, 4),)),
        Buffer("third", 96, ((4, 5),)),
    ]
    problem = Problem(tuple(buffers), MemoryScope("global"), name="tied")
    placement = PlannedProblem("best", problem, solve(problem, "best"))
    left = tuple(f"f: tensor{at}: its size is not known" for at in range(20))
    return Report("tied", (MemoryView("tied", (placement,)),), left=left)


def test_ties_of_the_peak_are_said_and_drawn(open_page):
    page = open_page(tied())
    text = page.texts("#peak")[0]
    assert "at 3 places: position 0, position 2, position 4" in text
    assert "Elsewhere at most 64 B are in use, at position 1" in text
    canvas = page.read(".plan .map", "[e.clientWidth, e.clientHeight]")[0]
    column = page.pixels(0, canvas[0] - 3, 0, 1, canvas[1])
    peak = page.colour("peak")
    rows = [at for at, pixel in enumerate(column) if near(pixel, peak, 60)]
    for place in (0, 2, 4):
        y = page.run(
            "const { page } = memoryMap;"
            "return page.drawings[0].y(page.memory.rows.top(arguments[0]))",
            place,
        )
        assert any(abs(row - y) <= 1 for row in rows), place


def test_lines_are_chosen_by_the_keyboard(open_page, kernel):
    page = open_page(kernel)
    focused = set()
    for _ in range(40):
        page.keys("\ue004")
        focused.add(page.run("return document.activeElement.id"))
        if "program-body" in focused:
            break
    assert "program-body" in focused
    page.keys("\ue015", "\ue015", "\ue015")
    (line,) = page.marked("chosen")
    page.keys("\ue013")
    assert page.marked("chosen") == {line - 1}
    assert page.texts("#facts h2") == [f"Live at line {line}"]


def test_folded_lines_have_numbers_and_layers(open_page, network):
    page = open_page(network)
    page.at_size(1400, 700)
    page.run("memoryMap.page.fit()")
    page.settle()
    texts = page.read("#program-body text", "e.textContent")
    labels = network.memories[0].axis.labels
    assert {"20", "40"} <= {*texts}
    layers = {label.partition(" ")[0].split(".")[0] for label in labels if label}
    assert len(layers & {*texts}) >= 3
    # A band of the first column spans the lines of a layer.
    bands = page.run("return memoryMap.page.program.bands.filter(([depth]) => !depth)")
    for _, first, end, text in bands:
        inside = {label for label in labels[first:end] if label}
        assert all(label.startswith(text) for label in inside), (text, inside)
    assert page.complaints() == []


def test_folded_lines_that_are_too_low_for_a_name_have_names_where_there_is_room(open_page):
    """Of 900 operators of a line each, those that write most have their names, each at its line."""
    names = [f"kernel{at}" for at in range(900)]
    large = range(450, 900, 50)
    buffers = tuple(
        Buffer(name, 4096 if at in large else 64, ((at, at + 1),)) for at, name in enumerate(names)
    )
    problem = Problem(buffers, MemoryScope("global"), name="long")
    lines = tuple(f"{name}(x)" for name in names)
    axis = Axis(lines, tuple(range(900)), "main", labels=tuple(names))
    notes = {name: BufferNote(writes=(at,)) for at, name in enumerate(names) if at >= 100}
    placed = PlannedProblem("best", problem, solve(problem, "best"))
    page = open_page(Report("long", (MemoryView("main", (placed,), written(axis, notes)),)))
    page.at_size(1400, 900)
    page.run("memoryMap.page.fit()")
    page.settle()
    found = page.read("#program-body text", "[e.textContent, +e.getAttribute('y')]")
    shown = {text: y for text, y in found if text.startswith("kernel")}
    assert {f"kernel{at}" for at in large} <= {*shown}
    assert 30 < len(shown) < 70
    assert all(int(name[6:]) >= 100 for name in shown)  # The first 100 write nothing.
    heights = sorted(shown.values())
    assert all(low - high >= 14 for high, low in itertools.pairwise(heights))
    for name, y in shown.items():
        middle = page.run(
            "return memoryMap.page.view.rows.pixel(arguments[0] + 0.5)", int(name[6:])
        )
        assert y == pytest.approx(middle, abs=0.1)
    assert page.complaints() == []


def test_equal_levels_have_two_names_where_one_has_no_room(open_page):
    (placed,) = tied().memories[0].plans
    plans = tuple(replace(placed, planner=planner) for planner in ("best", "first_fit", "bump"))
    page = open_page(Report("tied", (MemoryView("tied", plans),)))
    for width, names in ((1400, {"bound = peak 96 B"}), (390, {"bound 96 B", "peak 96 B"})):
        page.at_size(width, 844)
        texts = {*page.read(".plan .map text", "e.textContent")}
        assert texts >= names, texts


@pytest.mark.parametrize("theme", THEMES)
def test_a_picture_is_saved_as_it_is_seen(open_page, network, theme):
    page = open_page(network)
    page.at_size(1400, 900, theme)
    root = ElementTree.fromstring(page.run("return memoryMap.page.picture()"))
    text = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"stock (StaticPlanBlockMemory)", "best"} <= {*text}
    whole = ElementTree.tostring(root, encoding="unicode")
    assert "var(" not in whole
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    red, green, blue = page.colour("paper")
    assert paper == f"rgb({red}, {green}, {blue})"
    assert f"#{red:02x}{green:02x}{blue:02x}" in whole
    # The browser makes an image of it, twice as large, whose size is that of the picture.
    page.run(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push([this.download, this.href]); }"
    )
    page.browser.execute_async_script(
        "const done = arguments[0], { page } = memoryMap;"
        "page.save('svg').then(() => page.save('png')).then(done, done)"
    )
    (vector, _), (dots, url) = page.run("return window.saved")
    assert vector.endswith(".svg")
    assert dots.endswith(".png")
    image = pytest.importorskip("PIL.Image", reason="the package pillow is not there")
    with image.open(BytesIO(b64decode(url.partition(",")[2]))) as made:
        assert made.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
    assert page.complaints() == []
