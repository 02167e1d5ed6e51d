"""examples/watch in a real browser: a person connects, pulses a line, cancels, and loses the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.chromium import Browser, Tab, chromium, driving, needs_chromium
from support.watching import WATCH, Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.proof, needs_chromium, pytest.mark.usefixtures("unmeasured")]

USABLE = "!document.querySelector('#run').hidden"


@pytest.fixture
async def site() -> AsyncIterator[Serving]:
    async with serving() as run:
        yield run


@pytest.fixture(scope="module")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("browser")) as address:
        yield address


@pytest.fixture
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with driving(chromium_address) as started:
        yield started


async def open_page(browser: Browser, url: str) -> Tab:
    tab = await browser.open()
    await tab.navigate(url)
    await tab.until(USABLE)
    return tab


def events(text: str) -> str:
    return f"document.querySelector('#events').innerText.includes({text!r})"


async def test_a_person_pulses_a_line_and_sees_each_event_of_it(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    assert site.token not in await tab.evaluate("location.href")
    await tab.click("#run button:not(#cancel)")
    await tab.until(events("task_finish SUCCESS"))
    told = (await tab.evaluate("document.querySelector('#events').innerText")).splitlines()
    assert [line.split()[1] for line in told] == ["start", "finish", "start", "finish", "task_finish"]
    assert tab.errors == []


async def test_a_cancelled_pulse_says_so(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    await tab.click("#run button:not(#cancel)")
    await tab.until("!document.querySelector('#cancel').disabled")
    await tab.click("#cancel")
    await tab.until(events("task_finish CANCELLED"))


async def test_what_is_refused_is_shown_and_is_text(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    await tab.evaluate("document.querySelector('#line').value = '<img src=x onerror=document.title=1>'; 1")
    await tab.click("#run button:not(#cancel)")
    await tab.until(events("INVALID_PARAMS"))
    assert await tab.evaluate("document.querySelector('img')") is None


async def test_after_the_daemons_end_the_page_says_what_became_of_its_session_and_works_again(
    browser: Browser, site: Serving
) -> None:
    tab = await open_page(browser, site.url)
    site.kill_daemon()
    await tab.until(events("The session is gone"))
    await tab.until(f"document.querySelector('#state').innerText === 'open' && {USABLE}")
    await tab.click("#run button:not(#cancel)")
    await tab.until(events("task_finish SUCCESS"))


async def test_without_a_token_in_the_address_it_asks(browser: Browser, site: Serving) -> None:
    tab = await browser.open()
    await tab.navigate(site.origin)
    await tab.until("document.readyState === 'complete' && document.querySelector('#connect')")
    await tab.evaluate(f"document.querySelector('#url').value = '{site.daemon_address}'; 1")
    await tab.click("#token")
    await tab.type(site.token)
    await tab.press("Enter", 13, "\r")
    await tab.until(USABLE)


def test_the_example_has_less_than_a_hundred_lines() -> None:
    files = [path for path in Path(WATCH).iterdir() if path.suffix in (".js", ".html") and not path.is_symlink()]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) < 100
