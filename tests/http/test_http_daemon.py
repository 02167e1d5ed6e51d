"""hearthd with [http]: what it says and needs, SIGHUP, SIGTERM with streams open, and what it costs who has it not."""

import datetime as dt
import os
import re
import shutil
import signal
import socket
import ssl

import pytest
import trio
from support.hearthd import BOUND, Hearthd
from support.http import BOTH, JSON, LISTEN, Raw, initialize, message
from support.world import configured

from hearth import extras
from hearth.actors import daemon
from hearth.actors.listeners import unix
from hearth.actors.listeners.tls import certificates_of
from hearth.config.hcp import HcpConfig
from hearth.config.listen import Endpoint, HttpConfig
from hearth.errors import ConfigError

HTTP = '[http]\nlisten = "127.0.0.1:0"\n'
REPORTING = """
import atexit, sys
modules = ("starlette", "mcp", "mcp_types", "pydantic", "anyio", "prometheus_client", "uvicorn")
atexit.register(lambda: print("loaded:", *(name for name in modules if name in sys.modules), file=sys.stderr))
from hearth.actors.daemon import main
main()
"""


@pytest.fixture
def start(tmp_path, unmeasured):
    """`start(config, …)`: a running daemon, ended with the test."""
    made = []

    def started(config=HTTP, **how):
        made.append(Hearthd(tmp_path, config).start(**how))
        return made[-1]

    yield started
    for each in made:
        each.end()


def port_of(running):
    return int(re.search(r":(\d+)$", next(iter(running.listening.values())))[1])


# --- what is configured ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_has_no_http_configured_loads_nothing_of_it(start) -> None:
    running = start("", program=("-c", REPORTING))
    assert running.stop() == 0
    assert "loaded:\n" in running.said


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch) -> None:
    absent = set()
    found, mcp, http = extras.find_spec, extras.OWN["mcp"], extras.OWN["http"]
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else found(name))
    plain = configured(tmp_path, http=HttpConfig(listen=LISTEN))
    asked = configured(tmp_path, http=HttpConfig(listen=LISTEN, mcp=True))
    assert mcp.active(plain)
    assert not mcp.active(configured(tmp_path, http=HttpConfig(listen=LISTEN, mcp=False)))
    absent.add("mcp")
    assert not mcp.active(plain)
    with pytest.raises(ConfigError, match=r"\[http\] mcp: .* pip install 'hearthd\[mcp\]'"):
        mcp.active(asked)
    absent.add("starlette")
    with pytest.raises(ConfigError, match=r"\[http\] listen: .* pip install 'hearthd\[http\]'"):
        http.active(plain)
    assert not extras.active(configured(tmp_path, http=HttpConfig(), hcp=HcpConfig(serve=False)))


@pytest.mark.slow
def test_check_tells_what_the_daemon_would_be_told(tmp_path, monkeypatch, capfd) -> None:
    config = tmp_path / "hearth.toml"
    audit = f'[audit]\npath = "{tmp_path}/audit.log"\n'
    token = "[[policy]]\nname = 'a'\nmatch = { token_sha256 = '" + "ab" * 32 + "' }\n"
    owner = f"[[policy]]\nname = 'owner'\nmatch = {{ uid = {os.geteuid()} }}\nrights = ['reset_halt']\n"
    root = "[[policy]]\nname = 'root'\nmatch = { uid = 0 }\n" if os.geteuid() else ""
    config.write_text(audit + HTTP + token + owner + root)
    daemon.main(["--config", str(config), "--check"])
    assert "warning" not in capfd.readouterr().out
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    with pytest.raises(SystemExit) as ended:
        daemon.main(["--config", str(config), "--check"])
    assert ended.value.code == 2
    assert "pip install 'hearthd[http]'" in capfd.readouterr().err


def test_an_address_that_is_taken_is_told_with_its_section(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = Endpoint("127.0.0.1", taken.getsockname()[1])
        config, path = configured(tmp_path, http=HttpConfig(listen=listen)), tmp_path / "hearth.sock"
        with pytest.raises(ConfigError, match=rf"^\[http\] listen: cannot listen on {re.escape(str(listen))}: "):
            daemon.open_listeners(config, (), unix.bind(path), path, refuse_report, refuse_runtime)


def refuse_report(*_refusal):
    raise AssertionError("nobody has come yet")


def refuse_runtime():
    raise AssertionError("there is none yet")


@pytest.mark.slow
async def test_without_mcp_the_rest_is_served(start) -> None:
    running = start(f"{HTTP}mcp = false\n")
    async with await Raw.connect(port_of(running)) as raw:
        assert (await raw.ask("GET", "/mcp")).status == 404
        assert (await raw.ask("GET", "/healthz")).json["ok"] is True
        assert (await raw.ask("GET", "/metrics")).status == 200


# --- its life -------------------------------------------------------------------------------------------------------


@pytest.mark.proof
async def test_a_daemon_whose_clients_listen_ends_at_once(start) -> None:
    running = start()
    port = port_of(running)
    async with await Raw.connect(port) as raw:
        opened = await raw.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH)
    session = opened.headers["mcp-session-id"]
    async with await Raw.connect(port) as raw:
        call = message("tools/call", {"name": "gpio_set", "arguments": {"line": 17, "value": 1}})
        await raw.ask("POST", "/mcp", call, Content_Type=JSON, Accept=BOTH, Mcp_Session_Id=session)
        streams = [await Raw.connect(port) for _ in range(4)]
        for number, stream in enumerate(streams):
            if number == 0:
                await stream.send(stream.request("GET", "/mcp", Accept=BOTH, Mcp_Session_Id=session))
                assert (await stream.head()).status == 200
            else:
                await stream.ask("GET", "/healthz")
        running.signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(running.wait) == 0
        for stream in streams:
            await stream.aclose()
    assert running.recorded(event="session.close")["reason"] == "shutting down"
    assert "Traceback" not in running.said
    assert "INFO: StreamableHTTP" not in running.said


@pytest.mark.proof
def test_sighup_reads_the_certificates_again(start, bench, tmp_path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for source, target in ((bench.server_cert, cert), (bench.server_key, key)):
        shutil.copy(source, target)
        target.chmod(0o600)
    running = start(f'[http]\nlisten = "127.0.0.1:0"\ncert = "{cert}"\nkey = "{key}"\n')
    assert running.listening["https"]

    def shown():
        context = ssl.create_default_context(cafile=str(bench.ca))
        with (
            socket.create_connection(("127.0.0.1", port_of(running)), timeout=BOUND) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert secure.recv(4096).startswith(b"HTTP/1.1 200 ")
            return secure.getpeercert()["serialNumber"]

    former = shown()
    again = bench.server("again")
    shutil.copy(again[0], cert)
    shutil.copy(again[1], key)
    running.signal(signal.SIGHUP)
    running.until(lambda: "certificates have been read again" in running.said)
    assert shown() != former
    cert.write_text("nonsense")
    running.signal(signal.SIGHUP)
    running.until(lambda: "keeps the certificates it had" in running.said)
    assert "[http] cert" in running.said
    assert shown() != former


def test_a_certificate_that_expires_soon_is_told_of(bench, tmp_path) -> None:
    soon = bench.server("soon", end=dt.timedelta(days=3))
    config = configured(tmp_path, http=HttpConfig(listen=LISTEN, cert=soon[0], key=soon[1]))
    (told,) = certificates_of("http", config.http).warnings()
    assert told.startswith(f"[http] cert: {soon[0]}")
