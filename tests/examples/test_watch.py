"""The page that watches, in a real browser: a person connects, runs the plan, cancels, and loses daemon and link."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.chromium import Browser, Tab, chromium, driving, needs_chromium
from support.waiting import passes
from support.watching import WATCH, Relay, Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.proof, needs_chromium, pytest.mark.usefixtures("unmeasured")]

KEPT = Path(__file__).parents[2] / "test-artefacts"
HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "watch-from-a-web-page.md"
"""Where screenshots are kept for a person to look at."""
USABLE = "!document.querySelector('#run').disabled"
PLAN = "#tasks .task:has(.step:nth-child(9))"
"""The card of the task with nine steps: the plan's."""
REFUSED = "WebSocket connection to"
"""How a browser's console mentions a link that did not come about; no page can keep it from that."""


@pytest.fixture
async def site() -> AsyncIterator[Serving]:
    async with serving() as run:
        yield run


@pytest.fixture(scope="module")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all: each page is a private window, and what starts slowly is started once."""
    with chromium(tmp_path_factory.mktemp("browser")) as address:
        yield address


@pytest.fixture
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with driving(chromium_address) as started:
        yield started


@pytest.fixture
async def relay(site: Serving, nursery: trio.Nursery) -> Relay:
    made = Relay(int(site.daemon_address.rpartition(":")[2]))
    await nursery.start(made.run)
    return made


async def open_page(browser: Browser, url: str, **window: Any) -> Tab:
    """The page, connected and with a session."""
    tab = await browser.open(**window)
    await tab.navigate(url)
    await tab.until(USABLE)
    return tab


async def picture(tab: Tab, name: str, *, whole: bool = False) -> None:
    KEPT.mkdir(exist_ok=True)
    await tab.screenshot(KEPT / f"watch-{name}.png", whole=whole)


def shown(selector: str) -> str:
    """An expression: the text of what is to be seen there; "" if it is not."""
    return f"(e => e && e.checkVisibility() ? e.innerText : '')(document.querySelector({json.dumps(selector)}))"


async def sequence(tab: Tab) -> dict[str, list[int]]:
    """By task: the numbers of the events in the list, from the first on."""
    entries = await tab.evaluate(
        "[...document.querySelectorAll('#log .entry[data-seq]')].map(e => [e.dataset.task, +e.dataset.seq])"
    )
    found: dict[str, list[int]] = {}
    for task, seq in entries:
        found.setdefault(task, []).append(seq)
    return found


async def fits(tab: Tab) -> None:
    """Nothing is wider than the window."""
    wide = await tab.evaluate(
        "[document.documentElement.scrollWidth, innerWidth, [...document.querySelectorAll('body *')]"
        ".filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map(e => e.tagName + '.' + e.className)]"
    )
    assert wide[0] <= wide[1], wide
    assert wide[2] == []


async def test_a_person_runs_the_plan_watches_it_and_cancels_it(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    assert await tab.evaluate("location.href") == f"{site.origin}/"
    assert await tab.evaluate(shown("#link")) == "Connected"
    await picture(tab, "connected")
    await tab.evaluate(
        "{ const e = document.querySelector('#status'); window.said = [];"
        " new MutationObserver(() => said.push(e.textContent)).observe(e, {childList: true}); }"
    )

    await tab.click("#run")
    # While it happens: the relay's pulse runs, the steps before it are done, those after it wait.
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")
    assert await tab.evaluate(f"[...document.querySelectorAll('{PLAN} .step')].map(e => e.dataset.status)") == [
        *["SUCCESS"] * 3,
        "RUNNING",
        *["WAITING"] * 5,
    ]
    assert "found 0x48, 0x4d, 0x50" in await tab.evaluate(shown(f"{PLAN} .step:nth-child(2)"))
    first = await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4) progress').value")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4) progress').value > {first}")
    # The witness reports what the LED does, by progress events.
    await tab.until("document.querySelectorAll('.wave path').length")
    await tab.until("[...document.querySelectorAll('#log .phase')].some(e => e.textContent === 'progress')")

    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(5)').dataset.status === 'RUNNING'")
    await picture(tab, "running-light")
    await tab.look_like(width=1280, height=900, dark=True)
    await picture(tab, "running-dark")
    await tab.click(f"{PLAN} header button")
    await tab.until(f"document.querySelector('{PLAN}').dataset.status === 'CANCELLED'")
    steps = await tab.evaluate(f"[...document.querySelectorAll('{PLAN} .step')].map(e => e.dataset.status)")
    # On a machine with much else to do, the pictures may have taken longer than the pulse.
    done = steps.index("CANCELLED")
    assert done >= 4
    assert steps == [*["SUCCESS"] * done, *["CANCELLED"] * (9 - done)]
    # What the plan had done with the LED is taken back, and said so.
    await tab.until(f"{shown(f'{PLAN} .step:nth-child(3)')}.includes('taken back')")
    assert "plan 1: CANCELLED." in await tab.evaluate("said")
    await picture(tab, "cancelled-dark")
    # And it can be run again.
    await tab.click("#run")
    await tab.until(f"document.querySelectorAll('{PLAN}').length === 2")

    assert tab.errors == []
    assert all(address.startswith((site.origin + "/", site.daemon_address)) for address in tab.requested)
    assert not [address for address in tab.requested if site.token in address]


async def test_on_a_phone_all_of_it_fits_in_light_and_dark(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url, width=390, height=844)
    await fits(tab)
    await tab.click("#run")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(5)').dataset.status === 'RUNNING'")
    await fits(tab)
    await picture(tab, "phone-light", whole=True)
    await tab.look_like(width=390, height=844, dark=True)
    await picture(tab, "phone-dark", whole=True)
    await tab.look_like(width=320, height=640)
    await fits(tab)
    assert tab.errors == []


async def test_when_the_daemon_was_started_anew_the_page_says_that_the_session_is_gone(
    browser: Browser, site: Serving
) -> None:
    tab = await open_page(browser, site.url)
    former = await tab.evaluate(shown("#session-id"))
    await tab.click("#run")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")

    site.kill_daemon()
    await tab.until(f"{shown('#waiting')}.includes('The link is lost.')")
    hint = await tab.evaluate(shown("#waiting-hint"))
    assert "If it has ended, the session and its events have ended with it" in hint
    assert "not lost" not in await tab.evaluate(shown("#waiting"))
    await picture(tab, "link-lost")
    await tab.until(f"document.querySelector('#run').disabled && !!{shown(f'{PLAN} header button')}")
    await site.says("(runs again)")
    await tab.until(f"{shown('#gone')}.includes('The session is gone.')")
    assert await tab.evaluate("document.querySelector('#gone').getAttribute('role')") == "alert"
    gone = await tab.evaluate(shown("#gone"))
    assert "Events that had not arrived will not come; the audit log has the steps." in gone
    await tab.until(f"{shown('#link')} === 'Connected'")
    assert not await tab.evaluate(shown("#waiting"))
    assert await tab.evaluate(f"document.querySelector('{PLAN}').dataset.status") == "GONE"
    await picture(tab, "session-gone")
    await tab.look_like(width=390, height=844, dark=True)
    await fits(tab)
    await picture(tab, "session-gone-phone")
    await tab.look_like(width=1280, height=900)

    await tab.click("#renew")
    await tab.until(USABLE)
    assert not await tab.evaluate(shown("#gone"))
    assert await tab.evaluate(shown("#session-id")) not in ("", former)
    await tab.click("#run")
    await tab.until("document.querySelector('#tasks .task[data-status=RUNNING]') !== null")
    assert [error for error in tab.errors if REFUSED not in error] == []


async def test_a_daemon_that_ends_in_order_tells_how_its_tasks_ended(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    await tab.click("#run")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")
    os.kill(site.daemon_pid, signal.SIGTERM)
    await tab.until(f"{shown('#gone')}.includes('The session is gone.')")
    assert await tab.evaluate("[...document.querySelectorAll('#tasks .task')].map(e => e.dataset.status)") == [
        "CANCELLED",
        "CANCELLED",
    ]
    for found in (await sequence(tab)).values():
        assert found == list(range(1, len(found) + 1))


async def test_when_the_link_drops_no_event_is_lost_and_none_comes_twice(
    browser: Browser, site: Serving, relay: Relay
) -> None:
    tab = await open_page(browser, site.url_by(relay.port))
    await tab.click("#run")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")
    relay.cut()
    await tab.until(f"{shown('#waiting')}.includes('The link is lost.')")
    seen = {task: numbers[-1] for task, numbers in (await sequence(tab)).items()}
    assert len(seen) == 2
    # It tries, and goes on trying. Meanwhile things happen that it does not see.
    with trio.fail_after(30):
        await passes(lambda: relay.refused >= 2)
    already = len(tab.sent)
    relay.mend()
    await tab.until(f"{shown('#link')} === 'Connected'")
    asked = [sent["params"] for sent in tab.sent[already:] if sent["method"] == "task.events.subscribe"]
    assert {params["task_id"]: params["from_seq"] for params in asked if "task_id" in params} == {
        task: last + 1 for task, last in seen.items()
    }

    await tab.until("document.querySelectorAll('#tasks .task[data-status=SUCCESS]').length === 2")
    numbers = await sequence(tab)
    assert sorted(len(found) for found in numbers.values()) == [7, 19]
    for found in numbers.values():
        assert found == list(range(1, len(found) + 1))
    # Not even over the wire did anything come twice.
    events = [said["params"] for said in tab.received if said.get("method") == "task.event"]
    assert len({(event["task_id"], event["seq"]) for event in events}) == len(events) == 26
    assert not await tab.evaluate(shown("#gone"))
    assert [error for error in tab.errors if REFUSED not in error] == []


async def test_a_reload_finds_the_session_its_tasks_and_their_events_again(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    await tab.click("#run")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")
    session = await tab.evaluate(shown("#session-id"))
    await tab.command("Page.reload")
    await tab.until("performance.getEntriesByType('navigation')[0].type === 'reload'")
    await tab.until(f"document.querySelector('{PLAN} .step:nth-child(4)').dataset.status === 'RUNNING'")
    assert await tab.evaluate(shown("#session-id")) == session
    await tab.until("document.querySelectorAll('#tasks .task[data-status=SUCCESS]').length === 2")
    for found in (await sequence(tab)).values():
        assert found == list(range(1, len(found) + 1))
    # What had ended is found again, too, in the order in which it happened, and not task by task.
    await tab.command("Page.reload")
    await tab.until("document.querySelectorAll('#tasks .task[data-status=SUCCESS]').length === 2")
    await tab.until("document.querySelectorAll('#log .entry[data-seq]').length === 26")
    entries = await tab.evaluate(
        "[...document.querySelectorAll('#log .entry[data-seq]')]"
        ".map(e => [e.querySelector('time').dateTime, e.dataset.task])"
    )
    times, tasks = zip(*entries, strict=True)
    assert list(times) == sorted(times)
    assert len([task for task, next_ in pairwise(tasks) if task != next_]) > 2, "the two tasks ran side by side"
    for found in (await sequence(tab)).values():
        assert found == list(range(1, len(found) + 1))
    assert tab.errors == []


async def test_the_session_is_ended_and_a_new_one_opened_by_the_keyboard_alone(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url, calm=True)
    for _ in range(2):  # the list of the plan's steps, the button
        await tab.press("Tab", 9)
    assert await tab.evaluate("document.activeElement.id") == "run"
    await tab.press("Enter", 13, "\r")
    await tab.until("document.querySelectorAll('#tasks .task').length === 2")
    await tab.evaluate("document.querySelector('#end').focus()")
    await tab.press("Enter", 13, "\r")
    await tab.until(f"{shown('#gone')}.includes('The session is closed.')")
    await tab.until("!document.querySelector('#tasks .task[data-status=RUNNING]')")
    await tab.evaluate("document.querySelector('#renew').focus()")
    await tab.press("Enter", 13, "\r")
    await tab.until(USABLE)
    await tab.until("document.activeElement.id === 'run'")
    assert tab.errors == []


async def test_without_a_token_there_is_a_form_and_a_wrong_one_is_not_the_end(browser: Browser, site: Serving) -> None:
    tab = await browser.open(width=390, height=844)
    await tab.navigate(f"{site.origin}/")
    await tab.until(shown("#connect"))
    await fits(tab)
    await picture(tab, "form-phone")

    async def fill(address: str, token: str) -> None:
        for name, text in (("url", address), ("token", token)):
            await tab.evaluate(f"document.querySelector('#{name}').value = ''")
            await tab.click(f"#{name}")
            await tab.type(text)
        await tab.click("#connect button")

    await fill("http://127.0.0.1", "t")
    assert "begins with ws://" in await tab.until(shown("#connect-error"))
    await fill(site.daemon_address, "not one")
    await tab.until(f"{shown('#connect-error')}.includes('the token has characters')")
    await fill(site.daemon_address, "nobodys")
    assert "is the token its own" in await tab.until(shown("#waiting-hint"))
    await picture(tab, "refused-phone")
    await tab.click("#elsewhere")
    await fill(site.daemon_address, site.token)
    await tab.until(USABLE)
    session = await tab.evaluate(shown("#session-id"))
    # The address with both in it, pasted over the page that is open, is the same principal's: so is the session.
    await tab.navigate(site.url)
    await tab.until("performance.getEntriesByType('navigation')[0].type === 'reload' && location.hash === ''")
    await tab.until(USABLE)
    assert await tab.evaluate(shown("#session-id")) == session
    assert [error for error in tab.errors if REFUSED not in error] == []


async def test_what_comes_from_elsewhere_is_text_and_never_markup(browser: Browser, site: Serving) -> None:
    tab = await open_page(browser, site.url)
    # Another client of the same session, with an intent of its own.
    evil = "<img src=x onerror=document.title='taken'><b id=evil>bold</b>"
    step = {"tool": "gpio.get", "args": {"line": 27}}
    await tab.evaluate(
        f"""import("./hacp.js").then(async ({{ HacpClient }}) => {{
            const client = new HacpClient({json.dumps(site.daemon_address)}, {{ token: {json.dumps(site.token)} }});
            await client.connect();
            const session = await client.attach(document.querySelector("#session-id").textContent);
            const task = await session.submit({{ intent: {json.dumps(evil)}, steps: [{json.dumps(step)}] }});
            await task.wait();
            client.close();
        }})"""
    )
    assert await tab.until(shown("#tasks h3")) == evil
    assert await tab.evaluate("document.querySelector('#evil') === null && document.title") == "hearth: watch"
    # Nor would a script run that found its way into the page, or anything from elsewhere be loaded.
    await tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    blocked = await tab.until("document.title === 'hearth: watch'")
    assert blocked
    assert [error for error in tab.errors if "Content Security Policy" not in error and "404" not in error] == []


async def test_what_the_readme_shows_of_the_client_runs(browser: Browser, site: Serving) -> None:
    tab = await browser.open()
    await tab.navigate(f"{site.origin}/")
    await tab.until(shown("#connect"))
    text = await trio.Path(WATCH / "README.md").read_text()
    example = text.partition("```js\n")[2].partition("```")[0]
    imported, found, example = example.partition('import { HacpClient, HacpError } from "./hacp.js";')
    assert found
    assert imported == ""
    assert "wss://pi.local:7118" in example
    told = await tab.evaluate(
        f"""(async (token, told) => {{
            const show = (words) => told.push(words);
            const console = {{ log: (...words) => told.push(words.join(" ")) }};
            const {{ HacpClient, HacpError }} = await import("./hacp.js");
            {example.replace("wss://pi.local:7118", site.daemon_address)}
            return told;
        }})({json.dumps(site.token)}, [])"""
    )
    assert told == ["connecting", "open", "1 start ", "2 finish SUCCESS", "3 task_finish SUCCESS", "SUCCESS"]


async def test_the_page_of_the_how_to_shows_a_line_as_it_changes(browser: Browser, site: Serving) -> None:
    text = await trio.Path(HOW_TO).read_text()
    page = text.partition("```html\n")[2].partition("```")[0]
    script = page.partition('<script type="module">')[2].partition("</script>")[0]
    for shown_there, here in (
        ("ws://127.0.0.1:7118", site.daemon_address),
        ('prompt("Token")', json.dumps(site.token)),
        ('line: "BUTTON"', "line: 27"),  # what a page cannot press is wired to the LED
    ):
        assert shown_there in script
        script = script.replace(shown_there, here)
    tab = await browser.open()
    await tab.navigate(f"{site.origin}/")
    await tab.until(shown("#connect"))
    blink = {
        "intent": "blink",
        "steps": [{"tool": "gpio.pulse", "args": {"line": "LED", "value": 1, "duration_ms": 50}}],
    }
    imported = 'import { HacpClient } from "./hacp.js";'
    assert imported in script
    await tab.evaluate(
        f"""(async () => {{
            document.body.insertAdjacentHTML("beforeend", "<p id=level></p>");
            const {{ HacpClient }} = await import("./hacp.js");
            {script.replace(imported, "")}
            globalThis.blink = async () => (await session.submit({json.dumps(blink)})).wait();
        }})()"""
    )
    # The watch may begin after a first blink.
    await tab.evaluate("(async () => { while (!document.querySelector('#level').textContent) await blink(); })()")
    assert "value" in await tab.until(shown("#level"))
