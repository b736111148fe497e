"""A headless Chromium for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvm_ext.map import MemoryMap, write_map

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

    def __init__(self, browser, shown: MemoryMap, path: Path) -> None:
        self.browser, self.shown = browser, shown
        write_map(shown, path)
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

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.find(selector)]

    def move_to(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        from selenium.webdriver import ActionChains

        actions = ActionChains(self.browser)
        actions.w3c_actions.pointer_action.move_to_location(int(x), int(y))
        actions.perform()
        self.settle()

    def click(self, x: float, y: float) -> None:
        from selenium.webdriver import ActionChains

        self.move_to(x, y)
        ActionChains(self.browser).click().perform()
        self.settle()

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()
        self.settle()

    def boxes(self, buffer: str, plan: int = 0) -> list[dict]:
        """Where the rectangles of a buffer are in the window."""
        return self.run("return memoryMap.locate(arguments[0], arguments[1])", buffer, plan)

    def marked(self, kind: str) -> set[int]:
        """The lines, from 0, that have a mark."""
        return {int(e.get_attribute("data-line")) for e in self.find(f".row.{kind}")}


@pytest.fixture
def open_page(browser, tmp_path):
    def open_it(shown: MemoryMap) -> OpenPage:
        return OpenPage(browser, shown, tmp_path / "map.html")

    return open_it
