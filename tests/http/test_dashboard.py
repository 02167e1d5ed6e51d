"""The dashboard in a real browser, over a real hearthd: what a person sees, does by keyboard, and is told."""

from __future__ import annotations

import hashlib
import json
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.chromium import Browser, Tab, chromium, driving, needs_chromium
from support.hearthd import Hearthd
from support.ports import free_port

from hearth import connect, step
from hearth.errors import ApprovalRequired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.proof, needs_chromium, pytest.mark.usefixtures("unmeasured")]

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "test-artefacts"
"""Where screenshots are kept for a person to look at."""
AXE = ROOT / ".node" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("board", "tasks", "approvals", "timeline", "system")
TOKENS = {name: f"hearth_{name}-of-the-dashboard" for name in ("operator", "watcher", "clerk", "agent", "nobody")}
TAB, ENTER, SPACE, DOWN = ("Tab", 9), ("Enter", 13, "\r"), (" ", 32, " "), ("ArrowDown", 40)


def entry(name: str, more: str = "") -> str:
    digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
    return f'[[policy]]\nname = "{name}"\nmatch = {{ token_sha256 = "{digest}" }}\n{more}\n'


POLICY = (
    entry("operator", 'max_risk = 3\nrights = ["observe", "approve", "reset_halt", "admin"]')
    + entry("watcher", 'rights = ["observe"]')
    + entry("clerk", 'rights = ["observe", "approve", "reset_halt"]\napproval = [{ from_risk = 2 }]')
    + entry("agent", "max_risk = 2\napproval = [{ from_risk = 2, other = true }]")
    + entry("nobody")
    + '[[policy]]\nname = "local"\nmatch = { any = true }\n'
)


COVERS = '''\
from hearth import Job, capability

@capability("covers", version="1.0.0", tools=["gpio.set"], risk_ceiling="R4", max_duration="PT1M")
async def covers(job: Job) -> dict:
    """Ask, then light the lamp."""
    return {"approved": (await job.ask_person("Is the cover closed?")).approved}
'''


@pytest.fixture(scope="module")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all: each page is a private window, and what starts slowly is started once."""
    with chromium(tmp_path_factory.mktemp("browser")) as address:
        yield address


@pytest.fixture
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with driving(chromium_address) as started:
        yield started


class Site:
    """A daemon that serves its dashboard, always on the same port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        (directory / "covers.py").write_text(COVERS)
        (directory / "covers.py").chmod(0o644)
        hcp = f'[hcp]\ncapabilities = ["{directory / "covers.py"}"]\n'
        self.daemon = Hearthd(directory, f'[http]\nlisten = "127.0.0.1:{self.port}"\nmcp = false\n{hcp}{POLICY}')

    def url(self, who: str | None = "operator") -> str:
        """The page's address, with the token of one of the entries."""
        return f"http://127.0.0.1:{self.port}/ui/" + ("" if who is None else f"#token={TOKENS[who]}")

    def client(self, who: str) -> Any:
        """A client of hearth's own with a token, on the port of the page."""
        return connect(f"ws://127.0.0.1:{self.port}/hacp", token=TOKENS[who])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.daemon.start()
    yield made
    made.daemon.end()
    assert "Traceback" not in made.daemon.said


async def enter(browser: Browser, site: Site, who: str = "operator", **window: Any) -> Tab:
    """The page, signed in and live."""
    tab = await browser.open(**window)
    await tab.navigate(site.url(who))
    await tab.click("#offer-sign-in")
    live = "document.querySelector('#link').dataset.state === 'open'"
    await tab.until(f"{live} && !document.querySelector('#board').hidden")
    return tab


async def go(tab: Tab, view: str) -> None:
    await tab.evaluate(f"location.hash = '{view}'; 1")
    await tab.until(f"!document.querySelector('#{view}').hidden && document.title === 'hearth: {view}'")


def text(selector: str) -> str:
    """An expression: the text of the first element of a selector, or an empty one."""
    return f"(document.querySelector({json.dumps(selector)})?.innerText ?? '')"


async def press(tab: Tab, key: str, code: int, typed: str = "") -> None:
    await tab.press(key, code, typed)


async def tab_to(tab: Tab, selector: str) -> None:
    """Move the focus by the Tab key alone until it is on an element."""
    for _ in range(120):
        if await tab.evaluate(f"document.activeElement === document.querySelector({json.dumps(selector)})"):
            return
        await press(tab, *TAB)
    raise AssertionError(f"Tab does not lead to {selector}")


async def choose(tab: Tab, selector: str, value: str) -> None:
    """Move to a list by the Tab key, and down in it until the value is chosen."""
    await tab_to(tab, selector)
    for _ in range(60):
        if await tab.evaluate(f"document.querySelector({json.dumps(selector)}).value") == value:
            return
        await press(tab, *DOWN)
    raise AssertionError(f"{value} is not in {selector}")


async def test_each_view_shows_what_the_daemon_does(browser: Browser, site: Site) -> None:
    tab = await enter(browser, site)
    assert "token" not in await tab.evaluate("location.href")
    async with site.client("operator") as client, client.open_session(client_name="robot") as session:
        await session.gpio.set("LED", 1)
        await session.run("hw.sensor.read", sensor="temperature")
        led = "[...document.querySelectorAll('#board tbody tr')].find((row) => row.cells[0].innerText === 'LED')"
        await tab.until(f"{led} && {led}.cells[2].innerText === '1' && {led}.cells[4].innerText.startsWith('token:')")
        await tab.until(f"{text('#board figure figcaption')}.startsWith('temperature: ')")
        task = await session.submit("wait for the button", [step("gpio.watch", line="BUTTON", timeout_ms=60_000)])
        await go(tab, "tasks")
        card = "#tasks article[aria-label='Task: wait for the button']"
        await tab.until(f"{text(card)}.includes('RUNNING')")
        await tab.click(f"{card} button")
        assert (await task.wait()).status == "CANCELLED"
        await tab.until(f"{text(card)}.includes('CANCELLED')")
        await go(tab, "system")
        await tab.until(f"{text('#system table')}.includes('robot')")
        assert "all is well" in await tab.evaluate(text("#system .facts"))
        await go(tab, "timeline")
        await tab.until(f"{text('#timeline .scroll table')}.includes('gpio.set line=LED value=1')")
    assert tab.errors == []
    assert all(f"127.0.0.1:{site.port}/" in address for address in tab.requested), tab.requested


async def test_signals_are_shown_with_value_owner_safe_state_limits_waveform_and_table(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site)
    rows = "[...document.querySelectorAll('#signals tbody tr')]"

    def cell(name: str, number: int) -> str:
        return f"({rows}.find((row) => row.cells[0].innerText === '{name}')?.cells[{number}].innerText ?? '')"

    async with site.client("operator") as client, client.open_session(client_name="robot") as session:
        await tab.until(f"{cell('VALVE', 5)} === '0 volt' && {cell('ARM', 5)} === '90 degree'")
        assert await tab.evaluate(cell("FAN", 6)) == "0 to 1 duty; steps of 0.5"
        assert await tab.evaluate(cell("VALVE", 6)) == "0 to 10 volt; steps of 0.5; 5 a second"
        assert await tab.evaluate(cell("BIAS", 2)) == "–"
        await session.dac.set("VALVE", 4)
        await session.dac.set("BIAS", 1.5)
        await session.pwm.set("FAN", duty=0.25)
        await tab.until(f"{cell('VALVE', 2)} === '4 volt' && {cell('BIAS', 2)} === '1.5 volt'")
        await tab.until(f"{cell('FAN', 2)} === '0.25 duty' && {cell('FAN', 4)}.startsWith('token:')")
        canvas = f"{rows}.find((row) => row.cells[0].innerText === 'VALVE').querySelector('canvas')"
        pixels = f"{canvas}.getContext('2d').getImageData(0, 0, {canvas}.width, {canvas}.height).data"
        await tab.until(f"{canvas}.width > 0 && {pixels}.some((byte) => byte > 0)")
        label = await tab.evaluate(f"{canvas}.getAttribute('aria-label')")
        assert label.startswith("VALVE: 4 volt; ")
        assert label.endswith(" changes in the last minute, between 0 and 10")
        await tab.click("#signals details summary")
        history = text("#signals details tbody")
        await tab.until(f"{history}.includes('BIAS\\t1.5 volt')")
        # A signal on its way is seen on its way.
        await session.run("servo.move", servo="ARM", angle=120)
        await tab.until(f"{cell('ARM', 2)} === '120 degree'")
    await tab.until(f"{cell('VALVE', 2)} === '0 volt' && {cell('VALVE', 4)} === ''")
    assert not await tab.evaluate("[...document.querySelectorAll('#board figcaption')].length")
    assert tab.errors == []


async def test_one_table_shows_the_signals_of_all_kinds_with_value_quality_safe_limit_owner_and_what_is_left(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site)
    rows = "[...document.querySelectorAll('#named tbody tr')]"

    def cells(name: str) -> str:
        row = f"{rows}.find((row) => row.cells[0].innerText === '{name}')"
        return f"[...({row}?.cells ?? [])].map((one) => one.innerText)"

    async with site.client("operator") as client, client.open_session(client_name="robot") as session:
        await tab.until(f"{rows}.length > 40")
        assert await tab.evaluate(cells("temperature")) == [
            *("temperature", "i2c:1", "–", "none: not known without asking the hardware", "–", "", "", "")
        ]
        await session.gpio.set("LED", 1)
        await session.dac.set("BIAS", 1.5)
        await session.run("modbus.write", device="FAN", name="speed", value=10)
        await session.run("hw.sensor.read", sensor="temperature")
        await tab.until(f"{cells('LED')}[2] === '1' && {cells('LED')}[6].startsWith('token:')")
        await tab.until(f"{cells('temperature')}[2].endsWith(' celsius')")
        await tab.until(f"{cells('FAN.speed')}[7] === 'left as it is'")
        shown = await tab.evaluate(cells("BIAS"))
        assert shown[:6] == ["BIAS", "dac:sim", "1.5 volt", "stale", "1.25 volt", "min 0.5; max 2.5"]
        assert (await tab.evaluate(cells("FAN.speed")))[2:6] == ["10 hertz", "stale", "–", "min 0; max 50; max step 20"]
    assert tab.errors == []


async def test_by_keyboard_alone_a_plan_is_approved_and_the_daemon_halted_and_reset(
    browser: Browser, site: Site, nursery: trio.Nursery
) -> None:
    tab = await enter(browser, site)
    async with site.client("agent") as client, client.open_session(client_name="agent") as agent:
        plan = await agent.prepare("light the lamp", [step("gpio.set", line="LED", value=1)])
        await tab_to(tab, "nav a[href='#approvals']")
        await press(tab, *ENTER)
        await tab.until(f"{text('#approvals article')}.includes('light the lamp')")
        shown = await tab.evaluate(text("#approvals article"))
        assert 'gpio.set line="LED" value=1' in shown
        assert "value: 0 -> 1" in shown
        await tab_to(tab, "#approvals article button.good")
        await press(tab, *ENTER)
        task = await agent.execute(plan, wait_ms=30_000)
        assert (await task.wait()).status == "SUCCESS"
        await press(tab, "h", 72, "h")
        await tab.until("!document.querySelector('#halted').hidden")
        assert (await agent.halt_status()).halted
        await tab.until("!document.querySelector('#reset').hidden")
        await tab_to(tab, "#reset")
        await press(tab, *ENTER)
        # One step alone resets nothing.
        await tab.until("!document.querySelector('#reset-sure').hidden && !document.querySelector('#halted').hidden")
        await tab_to(tab, "#reset-now")
        await press(tab, *SPACE)
        await tab.until("document.querySelector('#halted').hidden")
        assert not (await agent.halt_status()).halted
    (record,) = site.daemon.records(event="halt")
    assert record["reason"] == "by a person at the dashboard"


async def test_a_job_and_its_question_are_shown_with_every_line_that_the_daemon_shows(
    browser: Browser, site: Site, nursery: trio.Nursery
) -> None:
    tab = await enter(browser, site)
    async with site.client("agent") as agent, site.client("operator") as operator:
        about: Any = {"caller_id": "agent", "context": {"notes": "night shift"}, "max_duration": "PT30S"}
        nursery.start_soon(partial(agent.delegate, "covers", "Only read the temperature", {}, **about))
        await go(tab, "approvals")
        question = 'question "Is the cover closed?"'
        for title, more in (("Only read the temperature", {"inputs"}), ("Is the cover closed?", {"question"})):
            await tab.until(f"{text('#approvals article h3')} === '{title}'")
            (waits,) = await operator.pending_approvals()
            members = {line.partition(" ")[0] for line in waits["shown"]}
            assert members >= {"intent", "context", "max_duration", "caller_id", *more}
            assert (waits["shown"][0] == question) is ("question" in more), "first"
            shown = await tab.evaluate("document.querySelector('#approvals article pre').textContent")
            assert shown.split("\n") == waits["shown"], "nothing in between, and nothing left out"
            await tab.click("#approvals article button.good")
        await tab.until("!document.querySelector('#approvals article')")
    assert tab.errors == []


async def test_by_keyboard_alone_a_person_submits_approves_halts_and_resets(browser: Browser, site: Site) -> None:
    tab = await enter(browser, site, "clerk")
    await tab_to(tab, "nav a[href='#tasks']")
    await press(tab, *ENTER)
    await tab_to(tab, "#new-task summary")
    await press(tab, *ENTER)
    await tab.until("document.querySelectorAll('#new-tool option').length > 1")
    await choose(tab, "#new-tool", "gpio.set")
    await tab_to(tab, "#new-arg-line")
    await tab.type("LED")
    await choose(tab, "#new-arg-value", "1")
    await tab_to(tab, "#new-intent")
    await tab.type("light the lamp")
    await press(tab, *ENTER)
    await tab.until("document.activeElement === document.querySelector('#new-task .card')")
    assert "value: 0 -> 1" in await tab.evaluate(text("#new-task .card"))
    await tab_to(tab, "#new-task .card button.good")
    await press(tab, *ENTER)
    await tab_to(tab, "nav a[href='#approvals']")
    await press(tab, *ENTER)
    await tab.until(f"{text('#approvals article')}.includes('light the lamp')")
    await tab_to(tab, "#approvals article button.good")
    await press(tab, *ENTER)
    await tab.until(f"{text('#notice')} === 'light the lamp: SUCCESS'")
    await tab_to(tab, "nav a[href='#board']")
    await press(tab, *ENTER)
    led = "[...document.querySelectorAll('#board tbody tr')].find((row) => row.cells[0].innerText === 'LED')"
    await tab.until(f"{led}?.cells[2].innerText === '1'")
    await press(tab, "h", 72, "h")
    await tab.until(f"!document.querySelector('#reset').hidden && {led}.cells[2].innerText === '0'")
    await tab_to(tab, "#reset")
    await press(tab, *ENTER)
    await tab_to(tab, "#reset-now")
    await press(tab, *ENTER)
    await tab.until("document.querySelector('#halted').hidden")
    assert tab.errors == []
    done = ("plan.prepare", "plan.approve", "plan.execute", "halt", "halt.reset")
    assert [record["event"] for record in site.daemon.records() if record["event"] in done] == list(done)


async def test_what_was_approved_in_advance_is_listed_and_one_button_revokes_it(browser: Browser, site: Site) -> None:
    tab = await enter(browser, site)
    await go(tab, "approvals")
    given, button = (f"#approvals [aria-label='Given in advance'] {each}" for each in ("article", "button"))
    async with site.client("operator") as client, client.open_session(client_name="operator") as operator:
        agent = "token:" + hashlib.sha256(TOKENS["agent"].encode()).hexdigest()
        bounds = {"line": {"equals": "LED"}, "value": {"min": 0, "max": 1}}
        await operator.call("approval.grant", tool="gpio.set", args=bounds, times=2, within_s=600, principal=agent)
        await tab.until(f"{text(given)}.includes('may run gpio.set')")
        shown = await tab.evaluate(text(given))
        assert 'with line "LED", value from 0 to 1, and no other args' in shown
        assert "2 left, given by token:" in shown
        async with site.client("agent") as other, other.open_session(client_name="agent") as session:
            await session.run("gpio.set", line="LED", value=1)
            await tab.until(f"{text(given)}.includes('1 left')")
            await tab.click(button)
            await tab.until(f"{text('#notice')} === 'Revoked' && !document.querySelector({json.dumps(given)})")
            with pytest.raises(ApprovalRequired):
                await session.run("gpio.set", line="LED", value=0)
        assert await operator.standing_approvals() == []
    assert len(site.daemon.records(event="approval.use")) == 1
    assert len(site.daemon.records(event="approval.revoke")) == 1
    assert tab.errors == []


async def test_a_task_that_cannot_run_says_why_and_one_that_is_discarded_is_withdrawn(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site, "clerk")
    await go(tab, "tasks")
    await tab.click("#new-task summary")
    await tab.until("document.querySelectorAll('#new-tool option').length > 1")
    await choose(tab, "#new-tool", "gpio.set")
    await tab.click("#new-arg-line")
    await tab.type("LET")
    await choose(tab, "#new-arg-value", "1")
    await tab.click("#new-task button[type=submit]")
    await tab.until(f"{text('#notice')}.includes('LED')")  # the nearest name
    await tab.evaluate("document.querySelector('#new-arg-line').value = '17'; 1")
    await tab.click("#new-task button[type=submit]")
    await tab.until("!document.querySelector('#new-task .card').hidden")
    await tab.click("#new-task .card button:not(.good)")
    await tab.until("document.querySelector('#new-task .card').hidden")
    await trio.to_thread.run_sync(lambda: site.daemon.recorded(event="plan.reject"))
    assert not site.daemon.records(event="plan.execute")


async def test_what_was_driven_from_the_page_is_safe_after_signing_out(browser: Browser, site: Site) -> None:
    tab = await enter(browser, site)
    await go(tab, "tasks")
    await tab.click("#new-task summary")
    await tab.until("document.querySelectorAll('#new-tool option').length > 1")
    await choose(tab, "#new-tool", "gpio.set")
    await tab.click("#new-arg-line")
    await tab.type("LED")
    await choose(tab, "#new-arg-value", "1")
    await tab.click("#new-task button[type=submit]")
    await tab.until("!document.querySelector('#new-task .card').hidden")
    await tab.click("#new-task .card button.good")
    await tab.until(f"{text('#notice')}.endsWith('SUCCESS')")
    await tab.click("#sign-out")
    await tab.until(f"{text('#sign-in-why')} === 'You are signed out.'")
    closed = await trio.to_thread.run_sync(lambda: site.daemon.recorded(event="session.close"))
    assert (closed["reason"], len(closed["safe"])) == ("closed by the client", 1), closed


async def test_a_click_of_these_tests_reaches_its_button_although_the_page_moves(browser: Browser) -> None:
    tab = await browser.open()
    moves = "if (!this.moved) { this.moved = true; document.querySelector('p').style.height = '200px'; }"
    await tab.navigate(
        'data:text/html,<body onmousemove="' + moves + '" onclick="this.title += event.target.id + \' \'">'
        "<p id=decoy style='height: 0; margin: 0'></p><button id=wanted style='width: 200px; height: 90px'>"
    )
    await tab.click("#wanted")
    assert await tab.evaluate("document.body.title") == "wanted "
    assert await tab.evaluate("document.body.moved")


async def test_h_in_a_text_field_is_a_letter(browser: Browser, site: Site) -> None:
    tab = await enter(browser, site)
    async with site.client("agent") as client, client.open_session() as agent:
        await agent.prepare("light the lamp", [step("gpio.set", line="LED", value=1)])
        await go(tab, "approvals")
        await tab.click("#approvals article input")
        await press(tab, "h", 72, "h")
        await tab.until("document.querySelector('#approvals article input').value === 'h'")
        await tab.click("#approvals article button:not(.good)")
        await tab.until(f"{text('#notice')}.startsWith('Rejected')")
    assert site.daemon.records(event="plan.reject")[0]["reason"] == "h"
    assert not site.daemon.records(event="halt")


async def test_what_a_person_may_not_do_is_not_offered(browser: Browser, site: Site) -> None:
    async with site.client("agent") as client, client.open_session() as agent:
        await agent.prepare("the content of somebody else's plan", [step("gpio.set", line="LED", value=1)])
        task = await agent.submit("wait", [step("gpio.watch", line="BUTTON", timeout_ms=60_000)])
        tab = await enter(browser, site, "watcher")
        await go(tab, "approvals")
        await tab.until(f"{text('#approvals')}.includes('you may not decide')")
        assert not any("somebody else's plan" in json.dumps(told) for told in tab.received)
        await go(tab, "tasks")
        await tab.until("document.querySelector('#tasks article')")
        assert await tab.evaluate("document.querySelector('#tasks article button')") is None
        await agent.halt("x")
        await tab.until("!document.querySelector('#halted').hidden")
        assert await tab.evaluate("document.querySelector('#reset').hidden")
        await task.cancel()


async def test_without_the_right_the_page_says_so_and_shows_no_data(browser: Browser, site: Site) -> None:
    tab = await browser.open()
    await tab.navigate(site.url("nobody"))
    await tab.click("#offer-sign-in")
    await tab.until("!document.querySelector('#denied').hidden")
    assert "'observe' is not given by policy 'nobody'" in await tab.evaluate(text("#denied-why"))
    assert await tab.evaluate("[...document.querySelectorAll('.view')].every((view) => view.hidden && !view.innerText)")
    assert not any("observe.event" in json.dumps(told) for told in tab.received)


async def test_where_no_session_and_no_connection_is_left_the_page_opens_and_its_button_halts(
    browser: Browser, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    site.daemon.config.write_text(f"{site.daemon.config.read_text()}[limits]\nmax_connections = 2\n")
    site.daemon.start()
    try:
        async with site.client("operator") as client, site.client("operator"), client.open_session() as session:
            tab = await browser.open()
            await tab.navigate(site.url())
            await tab.click("#offer-sign-in")
            await tab.until("!document.querySelector('#denied').hidden")
            assert "connections are open" in await tab.evaluate(text("#denied-why"))
            await tab.click("#halt")
            await tab.until(f"{text('#notice')}.startsWith('Halted since ')")
            assert (await session.halt_status()).halted
    finally:
        site.daemon.end()
    [record] = site.daemon.records(event="halt")
    assert record["reason"] == "by a person at the dashboard"


OFFERED = "!document.querySelector('#offer').hidden && !location.href.includes('token')"
SIGNED_OUT = "document.querySelector('#offer').hidden && !document.querySelector('#sign-in').hidden"


async def test_a_link_with_a_token_asks_and_signs_in_only_after_a_click(browser: Browser, site: Site) -> None:
    tab = await browser.open()
    await tab.navigate(site.url())
    await tab.until(OFFERED)
    assert f"127.0.0.1:{site.port}" in await tab.evaluate(text("#offer-why"))
    await press(tab, *ENTER)  # the focus is on the answer that signs in nowhere
    await tab.until(SIGNED_OUT)
    assert await tab.evaluate("sessionStorage.length") == 0
    assert not any(address.startswith("ws") for address in tab.requested), tab.requested
    assert not site.daemon.records(event="session.open")
    assert TOKENS["operator"] not in await tab.evaluate("document.documentElement.outerHTML")
    await tab.evaluate(f"location.hash = 'token={TOKENS['operator']}'; 1")
    await tab.until(OFFERED)
    await tab.click("#offer-sign-in")
    await tab.until("!document.querySelector('#board').hidden && document.querySelector('#offer').hidden")


async def test_a_link_with_another_token_does_not_replace_who_is_signed_in_without_a_click(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site, "watcher")
    before = await tab.evaluate(text("#who"))
    for answer, changed in (("#offer-not", False), ("#offer-sign-in", True)):
        await tab.evaluate(f"location.hash = 'token={TOKENS['operator']}'; 1")
        await tab.until(OFFERED)
        assert await tab.evaluate(text("#who")) == before
        await tab.click(answer)
        compared = "!==" if changed else "==="
        await tab.until(f"document.querySelector('#offer').hidden && {text('#who')} {compared} {json.dumps(before)}")
    await tab.until("document.querySelector('#link').dataset.state === 'open'")
    kept = await tab.evaluate("sessionStorage.getItem('token')")
    assert kept == TOKENS["operator"]


async def test_a_wrong_token_leads_back_to_the_sign_in_with_the_reason(browser: Browser, site: Site) -> None:
    tab = await browser.open()
    await tab.navigate(f"{site.url(None)}#token=hearth_guessed")
    await tab.click("#offer-sign-in")
    await tab.until(f"{text('#sign-in-why')}.includes('did not accept this sign-in')")
    assert await tab.evaluate("sessionStorage.getItem('token')") is None
    await tab.click("#token")
    await tab.type(TOKENS["operator"])
    await press(tab, *ENTER)
    await tab.until("!document.querySelector('#board').hidden")


async def test_a_daemon_that_begins_anew_is_noticed_and_the_page_says_what_it_does_not_know(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site)
    async with site.client("operator") as client, client.open_session() as session:
        await session.gpio.set("LED", 1)
    await trio.to_thread.run_sync(site.daemon.kill)
    await tab.until("document.querySelector('#link').dataset.state === 'waiting'")
    await tab.until(f"{text('#alarms')}.includes('is lost')")
    await trio.to_thread.run_sync(site.daemon.start)
    await tab.until("document.querySelector('#link').dataset.state === 'open'")
    await tab.until(f"{text('#notice')}.includes('has begun anew')")
    async with site.client("operator") as client, client.open_session(client_name="after") as session:
        await go(tab, "system")
        await tab.until(f"{text('#system table')}.includes('after')")


async def test_one_who_signs_out_while_the_connection_is_lost_is_told_that_the_daemon_does_not_know(
    browser: Browser, site: Site
) -> None:
    tab = await enter(browser, site)
    await trio.to_thread.run_sync(site.daemon.kill)
    await tab.until("document.querySelector('#link').dataset.state === 'waiting'")
    await tab.click("#sign-out")
    await tab.until(f"{text('#sign-in-why')}.includes('could not be told')")
    assert await tab.evaluate("sessionStorage.getItem('token')") is None


async def test_what_tasks_say_is_text_and_never_markup(browser: Browser, site: Site) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    tab = await enter(browser, site)
    async with site.client("operator") as client, client.open_session(client_name=evil) as session:
        await (await session.submit(evil, [step("gpio.get", line=4)])).wait()
        for view in VIEWS:
            await go(tab, view)
        await go(tab, "tasks")
        await tab.until(f"{text('#tasks')}.includes('onerror')")
        await go(tab, "system")
        await tab.until(f"{text('#system')}.includes('onerror')")
        assert await tab.evaluate("document.querySelector('main img, main script')") is None


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not here: make judges")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing_in_any_view_and_both_themes(browser: Browser, site: Site, dark: bool) -> None:
    KEPT.mkdir(exist_ok=True)
    theme = "dark" if dark else "light"
    tab = await enter(browser, site, width=1280, height=800, dark=dark)
    await tab.evaluate(f"{AXE.read_text('utf-8')};1")

    async def judged(what: str) -> None:
        found = await tab.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations.map("
            "(one) => [one.id, one.nodes[0].html, one.nodes[0].failureSummary])))"
        )
        assert json.loads(found) == [], f"{what}, {theme}"

    async with site.client("agent") as client, client.open_session(client_name="agent") as agent:
        await agent.prepare("light the lamp", [step("gpio.set", line="LED", value=1)])
        await agent.run("hw.sensor.read", sensor="tank")
        waiting = await agent.submit("wait", [step("gpio.watch", line="BUTTON", timeout_ms=60_000)])
        await tab.evaluate("document.querySelector('#new-task').open = true; 1")
        await tab.until("document.querySelectorAll('#new-tool option').length > 1")
        for view in VIEWS:
            await go(tab, view)
            await tab.until("document.querySelector('main').innerText.length > 40")
            await judged(view)
            for width, height in ((1280, 800), (390, 844)):
                await tab.look_like(width=width, height=height, dark=dark)
                await tab.screenshot(KEPT / f"dashboard-{view}-{width}-{theme}.png")
                # Plots take the new width with the next frame.
                await tab.until(f"document.documentElement.scrollWidth <= {width}")
            await tab.look_like(width=1280, height=800, dark=dark)
        await tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        await go(tab, "board")
        await judged("board with its tables")
        await agent.halt("smoke")
        await tab.until("!document.querySelector('#reset').hidden")
        await tab.click("#reset")
        await judged("halted")
        await tab.click("#reset-now")
        await waiting.cancel()
    await tab.click("#sign-out")
    await tab.until("!document.querySelector('#sign-in').hidden")
    await judged("sign-in")


def test_the_model_adds_up_the_stream_as_the_python_client_does() -> None:
    """Run the page's reducer in Node on events that hearth.client.observing takes too."""
    node = subprocess.run(["node", "--version"], capture_output=True, check=False)
    if node.returncode:
        pytest.skip("there is no Node here: apt-get install nodejs")
    from hearth.client import observing

    empty: dict[str, Any] = {name: [] for name in ("lines", "readings", "sessions", "tasks", "approvals")}
    empty["named"] = [{"bus": bus, "name": "FAN.speed", "value": None, "quality": "none"} for bus in ("a", "b")]
    state = {**empty, "seq": 3, "ts": "2026-11-24T15:52:48.469Z", "buses": {}, "halt": {"halted": False}, "health": {}}
    ids = {"session_id": "a", "task_id": "t", "principal": "uid:1"}
    records = [
        {"event": "session.open", "session_id": "a", "principal": "uid:1", "policy": "p"},
        {"event": "task.submit", **ids, "intent": "x", "steps": [{"tool": "gpio.set", "args": {"line": 1}}]},
        {"event": "task.step.start", **ids, "step_index": 0, "tool": "gpio.set"},
        {"event": "task.step.finish", **ids, "step_index": 0, "status": "SUCCESS", "latency_ms": 1},
    ]
    first = {"stream": "s", "seq": 3, "ts": state["ts"], "kind": "snapshot", "missed": None, "state": state}
    timed = [{"ts": state["ts"], **record} for record in records]
    events = [first] + [
        {"stream": "s", "seq": 4 + index, "ts": state["ts"], "kind": "records", "records": some}
        for index, some in enumerate((timed[:1], timed[1:]))
    ]
    change = {"bus": "b", "name": "FAN.speed", "value": 10, "quality": "stale"}
    events.append({"stream": "s", "seq": 6, "ts": state["ts"], "kind": "named", "named": [change]})
    mine: dict[str, Any] = {}
    for event in events:
        observing.apply(mine, json.loads(json.dumps(event)))
    program = (
        f"import {{ Model }} from {json.dumps(str(ROOT / 'actors/bridges/http/ui/model.js'))};"
        f"const model = new Model(); for (const event of {json.dumps(events)}) model.apply(event);"
        "const { sessions, tasks, named } = model.state; console.log(JSON.stringify({ sessions, tasks, named }));"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", program], capture_output=True, check=True, text=True)
    theirs = json.loads(done.stdout)
    for task in theirs["tasks"]:
        for one in task["steps"]:
            one.pop("latency_ms", None)
    assert theirs == {name: mine[name] for name in ("sessions", "tasks", "named")}
    assert [one["value"] for one in theirs["named"]] == [None, 10]


def test_the_model_plots_a_sensor_and_not_what_the_board_shows_as_an_output_of_any_kind() -> None:
    """Run the page's reducer in Node on readings, one of them of a vendor's channel."""
    node = subprocess.run(["node", "--version"], capture_output=True, check=False)
    if node.returncode:
        pytest.skip("there is no Node here: apt-get install nodejs")
    asked = [("gpio.get", {"line": 1}), ("servo.get", {"servo": "ARM"}), ("lamp.get", {"channel": "UV"})]
    asked.append(("hw.sensor.read", {"sensor": "tank"}))
    ts = "2026-11-24T15:52:48.469Z"
    readings = [{"ts": ts, "tool": tool, "args": args, "values": {"value": 1}} for tool, args in asked]
    state = {"buses": {}, "lines": [], "readings": readings}
    event = {"stream": "s", "seq": 3, "ts": ts, "kind": "snapshot", "missed": None, "state": state}
    program = (
        f"import {{ Model }} from {json.dumps(str(ROOT / 'actors/bridges/http/ui/model.js'))};"
        f"const model = new Model(); model.apply({json.dumps(event)});"
        "console.log(JSON.stringify([...model.series.keys()]));"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", program], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == ["hw.sensor.read tank value"]
