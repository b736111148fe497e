# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what it says is what the plans say, and it answers to its user."""

from __future__ import annotations

import re

import pytest
from sweeps import sample

from passes.planning import Buffer, Problem, solve
from target_hw.memory import MemoryScope
from tvm_ext.report import MemoryView, PlannedProblem, Report


def table_of(buffers, capacity=None, planners=("best",)) -> Report:
    problem = Problem(tuple(buffers), MemoryScope("global", capacity), name="table")
    placements = tuple(PlannedProblem(name, problem, solve(problem, name)) for name in planners)
    return Report("table", (MemoryView("table", placements),))


def spread(count: int) -> list[Buffer]:
    """Buffers whose sizes and lives look like those of a network, the same every time."""
    found = []
    for at in range(count):
        size = 64 * (1 + (at * 7919) % 997)
        found.append(Buffer(f"tensor{at}", size, ((at, at + 2 + (at * 31) % 40),)))
    return found


EVERYTHING = """
const done = arguments[0], { page } = memoryMap;
const drawn = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
const set = async (id, value) => {
  const select = document.getElementById(id);
  select.value = value;
  select.dispatchEvent(new Event("change"));
  await drawn();
};
(async () => {
  for (const scope of document.getElementById("memory").options) {
    await set("memory", scope.value);
    for (const way of document.getElementById("colour").options) await set("colour", way.value);
    const all = page.memory.buffers.length;
    for (let at = 0; at < all; at += Math.ceil(all / 8)) {
      page.choose(at, true);
      await drawn();
    }
  }
})().then(done, (error) => { console.error(error); done(); });
"""
"""Shows every memory in every way, and chooses some buffers of each."""


@pytest.mark.parametrize("what", sample(("overflow", "memories", "network"), "overflow"))
def test_nothing_is_complained_about(open_page, request, what):
    page = open_page(request.getfixturevalue(what))
    page.browser.execute_async_script(EVERYTHING)
    assert page.complaints() == []
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_the_numbers_are_the_plans(open_page, kernel):
    page = open_page(kernel)
    (scope,) = kernel.memories
    titles = page.run(
        "return [...document.querySelectorAll('#plan-table td[title]')].map(e => e.title)"
    )
    assert titles == [f"{p.plan.peak:,} bytes" for p in scope.plans]
    table = page.find("#plan-table")[0].text
    assert f"lower bound {scope.bound // 1024} KiB" in table
    assert f"capacity {scope.problem.capacity // 1024} KiB" in table
    for run in kernel.runs:
        assert f"{run.simulation.makespan:,}" in table
    for buffer in scope.problem.buffers[::3]:
        page.choose(buffer.name)
        facts = page.find("#facts")[0].text
        assert facts.startswith(buffer.name)
        found = re.findall(r"^offsets? (.*)$", facts, re.MULTILINE)
        offsets = [
            [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) \(0x", line)]
            for line in found
        ]
        assert offsets == [list(p.plan.offsets[buffer.name]) for p in scope.plans]
        assert f"({buffer.size:,} B)" in facts
        levels = re.findall(r"reuse level\s*(\d)", facts)
        assert levels == [str(scope.plans[0].plan.reuse[buffer.name].level)]


def test_on_paper_there_are_all_lines_and_no_controls(open_page, network):
    page = open_page(network)
    page.at_size(1060, 800)
    before = page.run("return Object.values(memoryMap.page.view).map(s => [s.from, s.scale])")
    lines = page.shown.memories[0].axis.lines
    assert len(page.lines()) < len(lines)
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.settle()
    assert sorted(page.lines()) == list(range(len(lines)))
    bottom = page.run(
        "return Math.max(...[...document.querySelectorAll('.row')].map(e =>"
        "e.getBoundingClientRect().bottom))"
    )
    canvas = page.read(".plan .map", "e.getBoundingClientRect().bottom")
    assert all(abs(one - bottom) < 40 for one in canvas)
    assert not any(page.read(".buttons, header label", "e.offsetParent !== null"))
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.settle()
    assert (
        page.run("return Object.values(memoryMap.page.view).map(s => [s.from, s.scale])") == before
    )
    assert page.complaints() == []


def test_the_address_names_the_chosen_buffer(open_page, memories):
    page = open_page(memories)
    name = memories.memories[1].problem.buffers[-1].name
    page.run("memoryMap.page.showMemory(1)")
    page.choose(name)
    address = page.browser.current_url
    assert "#memory=1&buffer=" in address
    page.browser.get("about:blank")
    page.browser.get(address)
    page.settle()
    assert page.texts("#facts h2")[0] == name
    page.run("memoryMap.page.choose(null)")
    assert page.browser.current_url.endswith("#memory=1")


def test_a_value_is_chosen_for_a_size_that_is_open(open_page):
    problem = Problem(
        (Buffer("a", 48, ((0, 2),)), Buffer("b", 16, ((1, 3),))), MemoryScope("global")
    )
    placement = PlannedProblem("best", problem, solve(problem))
    page = open_page(Report("dynamic", (MemoryView("main", (placement,), unit="batch"),)))
    assert "peak 64 B × batch" in page.texts(".plan .head")[0]
    page.run(
        "const field = document.getElementById('unit'); field.value = '1000';"
        "field.dispatchEvent(new Event('input'))"
    )
    assert "peak 62.5 KiB" in page.texts(".plan .head")[0]
    assert "×" not in page.texts(".plan .head")[0]
    page.run("memoryMap.page.choose(0)")
    assert "48,000 B" in page.texts("#facts")[0]
    assert page.complaints() == []


def test_the_peak_is_taken_apart(open_page, kernel):
    page = open_page(kernel)
    (scope,) = kernel.memories
    for at, placement in enumerate(scope.plans):
        page.run(
            "const select = document.querySelector('#peak select'); select.value = arguments[0];"
            "select.dispatchEvent(new Event('change'))",
            str(at),
        )
        peak, plan = placement.peak(), placement.plan
        rows = page.run(
            "return [...document.querySelectorAll('#peak-list tr[data-buffer]')].map(row =>"
            "[row.dataset.buffer, row.cells[1].title, row.cells[2].textContent])"
        )
        sizes = {b.name: b.size * len(plan.offsets[b.name]) for b in scope.problem.buffers}
        assert {name for name, _, _ in rows} == set(peak.live)
        assert [nbytes for _, nbytes, _ in rows] == [f"{sizes[n]:,} bytes" for n, _, _ in rows]
        assert [sizes[n] for n, _, _ in rows] == sorted((sizes[n] for n in peak.live), reverse=True)
        for name, _, share in rows:
            assert abs(float(share.rstrip("%")) - 100 * sizes[name] / plan.peak) <= 0.5
        line = scope.axis.line_of[peak.places[0]]
        text = page.find("#peak")[0].text
        places = dict.fromkeys(scope.axis.line_of[at] + 1 for at in peak.places)
        count = f"{len(places)} places: " if len(places) > 1 else ""
        assert f"{plan.peak:,} B) at {count}line {line + 1}," in text
        assert f"live at line {line + 1}, largest first" in text
        assert page.marked("at-peak") >= {at - 1 for at in places} & set(page.lines())


def test_pointing_at_a_buffer_marks_its_lines(open_page, kernel):
    page = open_page(kernel)
    (scope,) = kernel.memories
    for buffer in scope.problem.buffers[::3]:
        page.choose(buffer.name, zoom=True)
        page.run("memoryMap.page.choose(null)")
        page.settle()
        for plan in range(2):
            box = page.boxes(buffer.name, plan)[0]
            # In the row that is its own, if there is one: in place, two buffers lie on each other.
            page.run("memoryMap.page.hover(null)")
            x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"] - 2, 8)
            page.move_to(x, y)
            hovered = page.buffer("hovered")
            names = [other.name for other in scope.problem.buffers]
            under = {
                name
                for name, places in zip(names, page.all_boxes(names, plan), strict=True)
                for place in places
                if 0 <= x - place["x"] <= place["width"] and 0 <= y - place["y"] <= place["height"]
            }
            assert hovered in under
            if under == {buffer.name}:
                assert hovered == buffer.name
            note = scope.notes[hovered]
            ((first, last),) = scope.lines_of(hovered)
            in_sight = set(page.lines())
            assert page.marked("alive") == set(range(first, last + 1)) & in_sight
            touched = {note.allocated, *note.reads, *note.writes}
            assert page.marked("touched") == touched & in_sight
            assert page.texts("#tip b") == [hovered]


def test_pointing_at_a_line_shows_what_lives_there(open_page, kernel):
    page = open_page(kernel)
    (scope,) = kernel.memories
    lines = page.lines()
    shown = 0
    for line in lines[4:-4:5]:
        (row,) = page.find(f'.row[data-line="{line}"] .text')
        place = row.rect
        page.move_to(place["x"] + 5, place["y"] + place["height"] / 2)
        live = {
            b.name
            for b in scope.problem.buffers
            if any(first <= line <= last for first, last in scope.lines_of(b.name))
        }
        assert set(page.read("#facts tr[data-buffer]", "e.dataset.buffer")) == live
        used = {
            name
            for name, note in scope.notes.items()
            if line in {note.allocated, *note.reads, *note.writes}
        }
        names = page.run(
            "return memoryMap.page.touched.map(at => memoryMap.page.memory.buffers[at].name)"
        )
        assert set(names) == used
        shown += len(live)
    assert shown


def test_boxes_stand_beside_their_lines(open_page, kernel):
    page = open_page(kernel)
    (scope,) = kernel.memories
    rows = dict(page.read(".row", "[Number(e.dataset.line), e.getBoundingClientRect().toJSON()]"))
    for buffer in scope.problem.buffers:
        ((first, last),) = scope.lines_of(buffer.name)
        for box in page.boxes(buffer.name):
            if first in rows:
                assert rows[first]["y"] - 1 <= box["y"] < rows[first]["y"] + rows[first]["height"]
            if last in rows:
                bottom = rows[last]["y"] + rows[last]["height"]
                assert rows[last]["y"] < box["y"] + box["height"] <= bottom + 1


def test_the_keyboard_is_enough(open_page, kernel):
    from selenium.webdriver.common.keys import Keys

    page = open_page(kernel)
    (scope,) = kernel.memories
    page.keys(Keys.ARROW_DOWN)
    first = min(scope.problem.buffers, key=lambda b: b.live[0][0])
    assert page.buffer("chosen") == first.name
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert page.buffer("chosen") != first.name
    page.keys("/", "result", Keys.ENTER)
    assert "result" in page.buffer("chosen")
    page.keys(Keys.ESCAPE)
    page.keys(Keys.ESCAPE)
    assert page.buffer("chosen") is None
    before = page.run("return memoryMap.page.view.rows.scale")
    page.keys("+")
    assert page.run("return memoryMap.page.view.rows.scale") > before
    page.keys("0")
    page.keys("?")
    assert page.run("return document.getElementById('keys').open")
    assert page.complaints() == []


def test_search_finds_buffers_and_lines(open_page, kernel):
    page = open_page(kernel)
    page.find("#find")[0].send_keys("divisor")
    page.settle()
    (scope,) = kernel.memories
    expected = {at for at, line in enumerate(scope.axis.lines) if "divisor" in line}
    in_sight = set(page.lines())
    assert page.marked("match") == expected & in_sight
    assert "Found 1" in page.find("#results")[0].text


def test_names_are_only_names(open_page):
    names = [
        "</script><img src=x onerror=boom()>",
        "<b>bold</b>",
        "a&amp;b",
        "{{DATA}}",
        '"quote"',
        "ünï",
    ]
    page = open_page(table_of(Buffer(name, 64, ((0, 2),)) for name in names))
    assert page.run("return memoryMap.page.memory.buffers.map(b => b.name)") == names
    for at, name in enumerate(names):
        page.run("memoryMap.page.choose(arguments[0])", at)
        assert page.texts("#facts h2")[0] == name
    assert {*page.texts("#peak-list td.name")} == {f"{name}" for name in names}
    page.find("#find")[0].send_keys("</")
    page.settle()
    page.find("#results tr[data-buffer]")[0].click()
    assert page.texts("#facts h2")[0] == names[0]
    assert page.find("img, b > script") == []
    assert page.complaints() == []


@pytest.mark.slow
def test_twenty_thousand_buffers(open_page):
    page = open_page(table_of(spread(20_000), planners=("bump",)))
    assert page.complaints() == []
    assert page.run("return document.getElementsByTagName('*').length") < 2000
    for factor in (3, 30, 300):
        page.run("memoryMap.page.view.rows.zoom(arguments[0], 200); memoryMap.page.draw()", factor)
        page.settle()
    buffer = page.shown.memories[0].problem.buffers[12_345]
    page.find("#find")[0].send_keys(buffer.name)
    page.keys("\ue007")
    # Found and entered, it is in sight and large enough to be seen.
    (box,) = page.boxes(buffer.name)
    (map_,) = page.read(".plan .map", "e.getBoundingClientRect().toJSON()")
    assert box["width"] >= 10
    assert box["height"] >= 10
    assert min(map_["right"], box["x"] + box["width"]) - max(map_["left"], box["x"]) >= 10
    assert min(map_["bottom"], box["y"] + box["height"]) - max(map_["top"], box["y"]) >= 10
    page.keys("\ue00c")
    page.run("memoryMap.page.zoomTo(memoryMap.page.memory.index.get(arguments[0]))", buffer.name)
    page.settle()
    (box,) = page.boxes(buffer.name)
    page.move_to(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.texts("#tip b") == [buffer.name]
    offset = page.shown.memories[0].plans[0].plan.offsets[buffer.name][0]
    assert f"at {offset:,}" in page.find("#tip")[0].text


def test_a_plan_above_the_capacity_says_so(open_page, overflow):
    page = open_page(overflow)
    assert "does not fit, as no plan does" in page.find(".plan .head")[0].text
    assert page.find(".plan .over")
    (scope,) = overflow.memories
    said = [line.strip() for line in scope.explain(scope.plans[0]).splitlines()]
    shown = page.read("#why p", "e.textContent")
    bare = re.compile(r"(?<=\d),(?=\d{3})")
    unquoted = [re.sub(r"'([^']*)'", r"\1", line) for line in said]
    assert [re.sub(r"'([^']*)'", r"\1", bare.sub("", line)) for line in shown] == unquoted
    assert f"{scope.plans[0].plan.peak:,}" in shown[0]
    # The names of buffers lead to them.
    names = page.read("#why a", "e.textContent")
    assert set(names) <= set(scope.problem.index)
    assert len(names) >= 3
    page.find("#why a")[0].click()
    assert page.texts("#facts h2")[0] == names[0]
    (family,) = set(page.read("#why p", "getComputedStyle(e).fontFamily"))
    assert "mono" not in family.lower()


def test_the_page_works_in_a_notebook(browser, tmp_path):
    # As a server of notebooks may say: scripts of the page itself, and nothing from elsewhere.
    policy = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'"
    page = tmp_path / "notebook.html"
    page.write_text(
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<body>{table_of(spread(2))._repr_html_()}</body>"
    )
    browser.get_log("browser")
    browser.get(page.as_uri())
    browser.switch_to.frame(0)
    assert "tensor1" in browser.execute_script("return document.body.innerText")
    assert browser.execute_script("return document.querySelectorAll('.plan svg path').length")
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []
