"""`hearth admin card`: what it prints, keeps, and exits with."""

import io
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from support.cards import EXAMPLE, card, with_endpoint

from hearth.agentcard import fetch as card_cache
from hearth.agentcard.fetch import CardCache, Fetched, default_directory
from hearth.cli import card as module


def run(*arguments, text=None):
    return CliRunner().invoke(module.card, list(arguments), input=text)


class Server:
    """A card on a port of its own; counts who asks, and honours If-None-Match."""

    def __init__(self):
        self.card = with_endpoint("mcp", "http://127.0.0.1/mcp")
        self.headers = {"Cache-Control": "max-age=3600", "ETag": '"one"'}
        self.asked = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("If-None-Match")
                server.asked.append((self.path, wanted))
                body = json.dumps(server.card).encode()
                fresh = wanted is not None and wanted == server.headers.get("ETag")
                self.send_response(304 if fresh else 200)
                self.send_header("Content-Type", "application/agentcard+json")
                for name, value in server.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0" if fresh else str(len(body)))
                self.end_headers()
                if not fresh:
                    self.wfile.write(body)

            def log_message(self, *_words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join(60)
        self.server.server_close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1_800_000_000.0

    monkeypatch.setattr(module.time, "time", lambda: Clock.now)
    return Clock


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- validate -------------------------------------------------------------------------------------------------------


def test_a_valid_card_is_said_to_be_and_the_exit_code_is_0(tmp_path):
    file = tmp_path / "card.json"
    file.write_text(json.dumps(EXAMPLE))
    done = run("validate", str(file))
    assert (done.exit_code, done.stdout) == (0, "valid: ResearchAnalyst 1.2.0, 3 capabilities\nnot signed\n")
    assert run("validate", "-", text=json.dumps(json.dumps(EXAMPLE))).exit_code == 0
    told = run("validate", str(file), "--json")
    assert json.loads(told.stdout) == {"valid": True, "findings": [], "signature": None}


def test_all_that_is_wrong_is_told_with_its_place_rule_and_cure_and_the_exit_code_is_1():
    wrong = json.dumps(card(version="1", pricing={"base_cost_joules": 1e-30}))
    done = run("validate", "-", text=wrong)
    assert (done.exit_code, done.stdout) == (1, "")
    assert '/version: "1" is no semantic version  (§5 rule 2)' in done.stderr
    assert "        give 0, or at least 2.854e-21" in done.stderr
    told = run("validate", "-", "--json", text=wrong)
    assert told.exit_code == 1
    assert [each["pointer"] for each in json.loads(told.stdout)["findings"]] == [
        "/version",
        "/pricing/base_cost_joules",
    ]


def test_a_card_that_would_write_on_the_terminal_is_shown_as_escapes():
    done = run("validate", "-", text=json.dumps(card(name="\x1b[31mred", version="\x1b]0;x\x07")))
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("file", ["nowhere.json", "/"])
def test_a_file_that_cannot_be_read_is_a_usage_error(file):
    done = run("validate", file)
    assert done.exit_code == 2
    assert "give a file with a card" in done.stderr


def test_a_file_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "MAX_FILE", 100)
    assert "no card is so large" in run("validate", "/dev/zero").stderr


# --- fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "card 8.4",
    "SHOULD",
    "Consumers SHOULD treat self-declared trust tiers as advisory hints and MUST validate trust tier claims against an "
    "independent record of the agent's interaction history before acting on them.",
)
def test_a_fetched_card_is_shown_and_its_claims_are_called_claims(server):
    done = run("fetch", server.url)
    assert done.exit_code == 0, done.stderr
    assert "ResearchAnalyst  1.2.0" in done.stdout
    assert "mcp http://127.0.0.1/mcp  (auth: none)" in done.stdout
    assert "2.854e-21 J a call, 1.4e-24 J a token" in done.stdout
    assert "established, by its own claim" in done.stdout
    assert "01HZQK3P8EMXR9V7T5N2W4J6C1" in done.stdout
    assert "tool.web_search" in done.stdout
    assert server.asked == [("/.well-known/agentcard", None)]
    assert json.loads(run("fetch", server.url, "--json").stdout) == server.card


@pytest.mark.spec("card 4", "SHOULD", "Validators and registries SHOULD re-fetch at the cache expiry interval.")
def test_a_card_is_asked_for_again_when_it_has_expired_and_not_before(server, clock):
    for _ in range(3):
        assert run("fetch", server.url).exit_code == 0
    assert len(server.asked) == 1
    clock.now += 3599
    run("fetch", server.url)
    assert len(server.asked) == 1
    clock.now += 1
    assert run("fetch", server.url).exit_code == 0
    assert server.asked[1:] == [("/.well-known/agentcard", '"one"')], "it is asked whether it has changed"
    run("fetch", server.url)
    assert len(server.asked) == 2, "it has not, and is fresh again"
    clock.now += 3600
    server.card, server.headers["ETag"] = {**server.card, "version": "1.3.0"}, '"two"'
    assert "1.3.0" in run("fetch", server.url).stdout
    assert "1.3.0" in run("fetch", server.url).stdout
    assert len(server.asked) == 3


def test_a_clock_that_was_set_back_keeps_no_card_alive(server, clock):
    run("fetch", server.url)
    clock.now -= 10
    run("fetch", server.url)
    assert len(server.asked) == 2


def test_refresh_asks_at_once_and_for_the_whole_card(server):
    run("fetch", server.url)
    run("fetch", server.url, "--refresh")
    assert server.asked == [("/.well-known/agentcard", None)] * 2


def test_what_may_not_be_kept_is_not(server, tmp_path):
    kept = tmp_path / "mine"
    run("fetch", server.url, "--cache", str(kept))
    assert len(list(kept.iterdir())) == 1
    server.headers = {"Cache-Control": "no-store"}
    run("fetch", server.url, "--cache", str(kept), "--refresh")
    assert list(kept.iterdir()) == []


def test_a_refused_card_is_told_with_its_findings_and_is_not_kept(server, tmp_path):
    server.card = with_endpoint("https", "https://a.example/")
    for _ in range(2):
        done = run("fetch", server.url)
        assert done.exit_code == 1
        assert "sends a card that leads elsewhere" in done.stderr
        assert "(§8.5)" in done.stderr
    assert len(server.asked) == 2
    told = run("fetch", server.url, "--json")
    assert [each["rule"] for each in json.loads(told.stdout)["findings"]] == ["§8.5"]
    server.card = card(version="1")
    assert "/version" in run("fetch", server.url).stderr
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_kept_card_is_held_to_the_scheme_each_time(server):
    server.card = with_endpoint("stdio", "stdio:agent")
    assert run("fetch", server.url, "--any-scheme").exit_code == 0
    done = run("fetch", server.url)
    assert (done.exit_code, len(server.asked)) == (1, 1)
    assert "--any-scheme takes it" in done.stderr


def test_mistakes_in_the_call_are_usage_errors(tmp_path):
    assert run("fetch", "a.example").exit_code == 2
    assert run("fetch", "http://a.example").exit_code == 2
    nowhere = run("fetch", "https://127.0.0.1:1", "--ca", str(tmp_path / "none.pem"))
    assert nowhere.exit_code == 2
    assert "none.pem: No such file" in nowhere.stderr
    assert run("fetch", "http://127.0.0.1:1").exit_code == 3


def test_without_the_http_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx2", None)
    monkeypatch.delitem(__import__("sys").modules, "hearth.agentcard.fetch")
    monkeypatch.delattr("hearth.agentcard.fetch", raising=False)
    done = run("fetch", "https://a.example")
    assert done.exit_code == 2
    assert "pip install 'hearthd[http]'" in done.stderr


# --- the cache ------------------------------------------------------------------------------------------------------

GOOD = Fetched("https://a/", b"{}", '"t"', 60)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"5", b'{"format": 2}', b"\xff", b'{"format": 1, "asked": "https://b/"}',
     b'{"format": 1, "asked": "https://a/", "at": "x", "max_age": 5, "etag": null, "url": "", "body": ""}',
     b'{"format": 1, "asked": "https://a/", "at": 5, "max_age": 5, "etag": 5, "url": "", "body": "%"}'],
)  # fmt: skip
def test_a_kept_file_that_is_not_ours_is_as_if_there_were_none(tmp_path, content):
    cache = CardCache(tmp_path)
    cache.keep("https://a/", GOOD, 1000.0)
    assert cache.find("https://a/", 1059.0) == (GOOD, True)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert cache.find("https://a/", 1059.0) is None


def test_the_directory_holds_a_bounded_number_of_cards_and_drops_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(card_cache, "MAX_CARDS", 3)
    cache = CardCache(tmp_path)
    for number in range(5):
        cache.keep(f"https://{number}/", GOOD, 1000.0)
        for file in tmp_path.iterdir():
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
    found = [number for number in range(5) if cache.find(f"https://{number}/", 1001.0)]
    assert found == [2, 3, 4]


def test_a_directory_that_cannot_be_written_only_means_that_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CardCache(tmp_path / "file" / "cards")
    cache.keep("https://a/", GOOD, 1000.0)
    assert cache.find("https://a/", 1000.0) is None


def test_where_cards_are_kept_by_default(tmp_path):
    assert default_directory({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == tmp_path.__class__("/x/hearth/cards")
    assert default_directory({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == tmp_path.__class__(
        "/h/.cache/hearth/cards"
    )
    assert default_directory({}) is None


# --- nothing that a card claims is acted upon -----------------------------------------------------------------------


@pytest.mark.spec(
    "card 8.1",
    "MUST NOT",
    "Consumers MUST NOT grant elevated privileges or trust solely on the basis of declared capabilities.",
)
@pytest.mark.spec(
    "card 8.4",
    "MUST",
    "Consumers SHOULD treat self-declared trust tiers as advisory hints and MUST validate trust tier claims against an "
    "independent record of the agent's interaction history before acting on them.",
)
def test_what_decides_who_may_do_what_knows_no_card():
    import ast
    from pathlib import Path

    import hearth

    root = Path(hearth.__file__).parent
    deciding = [*(root / "policy").glob("*.py"), root / "actors" / "admission.py"]
    assert len(deciding) > 5
    for file in deciding:
        text = file.read_text("utf-8")
        assert "agentcard" not in text, file
        assert "trust_tier" not in text, file
        ast.parse(text)


def test_a_bound_of_bytes_is_kept_on_stdin_too(monkeypatch):
    monkeypatch.setattr(module, "MAX_FILE", 10)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" " * 100)))
    with pytest.raises(module.ConfigError, match="longer than 10 bytes"):
        module._content("-")
