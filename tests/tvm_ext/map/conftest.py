# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from saved_json import saved_json
from written_networks import WRITTEN

from tvm_ext.report import Report, memory_map

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-sync",
    "--window-size=1500,1000",
)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    webdriver = pytest.importorskip("selenium.webdriver", reason="there is no selenium here")
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


class OpenPage:
    """A memory map in the browser, and what its page says."""

    def __init__(self, browser, shown: Report, path: Path) -> None:
        self.browser, self.shown = browser, shown
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        shown.save(path)
        browser.get_log("browser")  # What earlier pages said is not ours.
        browser.get(path.as_uri())
        self.settle()

    def run(self, script: str, *arguments):
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.browser.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));"
        )

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def find(self, selector: str):
        return self.browser.find_elements("css selector", selector)

    def read(self, selector: str, what: str) -> list:
        """Evaluate an expression of `e` for all elements in one round trip."""
        return self.run(
            f"return [...document.querySelectorAll(arguments[0])].map(e => {what})", selector
        )

    def texts(self, selector: str) -> list[str]:
        return self.read(selector, "e.innerText")

    def lines(self) -> list[int]:
        """The lines, from 0, that are in the page."""
        return [int(line) for line in self.read(".row", "e.dataset.line")]

    def at_size(self, width: int, height: int, theme: str = "light") -> None:
        """Give the window a size and the system a theme until the next page is opened."""
        emulate = self.browser.execute_cdp_cmd
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        emulate("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": theme}
        emulate("Emulation.setEmulatedMedia", {"features": [feature]})
        self.settle()

    def pixels(self, plan: int, x: float, y: float, width: float, height: float) -> list[list[int]]:
        """The colours (red, green, blue) of a rectangle of a plan, row by row."""
        image = pytest.importorskip("PIL.Image", reason="the package pillow is not there")
        around = self.read(".plan .map", "e.getBoundingClientRect().toJSON()")[plan]
        left, top = round(around["x"] + x), round(around["y"] + y)
        with image.open(BytesIO(self.browser.get_screenshot_as_png())) as whole:
            part = whole.convert("RGB").crop((left, top, left + width, top + height))
            return [list(part.getpixel((x, y))) for y in range(height) for x in range(width)]

    def colour(self, name: str) -> list[int]:
        """A colour of the theme: red, green, blue."""
        text = self.run(
            "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])",
            f"--{name}",
        ).strip()
        return [int(text[at : at + 2], 16) for at in (1, 3, 5)]

    def move_to(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        from selenium.webdriver import ActionChains

        actions = ActionChains(self.browser, duration=0)  # By default each move takes 250 ms.
        actions.w3c_actions.pointer_action.move_to_location(int(x), int(y))
        actions.perform()
        self.settle()

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()
        self.settle()

    def choose(self, buffer: str, zoom: bool = False) -> None:
        """Choose a buffer by its name."""
        index = "memoryMap.page.memory.index.get(arguments[0])"
        self.run(f"memoryMap.page.choose({index}, arguments[1])", buffer, zoom)

    def buffer(self, state: str) -> str | None:
        """The name of the buffer that is ``chosen`` or ``hovered``."""
        return self.run(
            "const { page } = memoryMap, { memory } = page, at = page[arguments[0]];"
            "return at === null ? null : memory.buffers[at].name",
            state,
        )

    def boxes(self, buffer: str, plan: int = 0) -> list[dict]:
        """Where the rectangles of a buffer are in the window."""
        return self.all_boxes([buffer], plan)[0]

    def all_boxes(self, buffers: list[str], plan: int) -> list[list[dict]]:
        """Where the rectangles of each of some buffers are in the window."""
        return self.run(
            """
            const { page } = memoryMap, drawing = page.drawings[arguments[1]];
            const { x: left, y: top } = drawing.body.getBoundingClientRect();
            return arguments[0].map((name) => (drawing.plan.of[page.memory.index.get(name)] ?? [])
              .map((box) => {
                const [x, y, width, height] = drawing.frame(box);
                return { x: left + x, y: top + y, width, height };
              }));
            """,
            buffers,
            plan,
        )

    def marked(self, kind: str) -> set[int]:
        """The lines, from 0, that have a mark."""
        return set(map(int, self.read(f".row.{kind}", "e.dataset.line")))


@pytest.fixture
def open_page(browser, tmp_path):
    def open_it(shown: Report) -> OpenPage:
        return OpenPage(browser, shown, tmp_path / "map.html")

    return open_it


@cache
def planned(what: str, *planners: str) -> Report:
    """Plan a program's memory once for all tests of the page."""
    return memory_map(what, planners=planners)


@pytest.fixture(scope="session")
def kernel() -> Report:
    return planned("ascend:gelu:lowest", "three_level", "bump")


@pytest.fixture(scope="session")
def overflow() -> Report:
    return planned("ascend:gelu:overflow")


@pytest.fixture(scope="session")
def memories() -> Report:
    """A kernel with buffers in several memories."""
    return planned("ascend:matmul_add_relu:lowest")


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A network whose tensors have names of their own, as few as fit on a page."""
    path = tmp_path_factory.mktemp("map") / "resnet18.json"
    path.write_text(saved_json(WRITTEN["resnet18"].build()))
    return planned(str(path), "stock", "best")
