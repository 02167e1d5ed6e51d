"""examples/watch/serve.py: what it serves and what it does not, what it starts, and that nothing of it stays."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest
import trio
from support.waiting import passes
from support.watching import COMMAND, WATCH, Serving, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]


def ask(site: Serving, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """The status, the headers by lower-case name, the body."""
    connection = http.client.HTTPConnection(site.origin.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def test_the_page_is_served_to_be_read_and_nothing_else_is() -> None:
    async with serving() as site:
        for path, kind in {
            "/": "text/html; charset=utf-8",
            "/hacp.js": "text/javascript; charset=utf-8",
            "/style.css?v=1": "text/css; charset=utf-8",
            "/plan.json": "application/json",
            "/icon.svg": "image/svg+xml",
        }.items():
            status, headers, body = await trio.to_thread.run_sync(ask, site, path)
            assert (status, headers["content-type"]) == (200, kind)
            assert body == (WATCH / (path.strip("/").partition("?")[0] or "index.html")).read_bytes()
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "Python" not in headers["server"]
            status, without_body, body = await trio.to_thread.run_sync(ask, site, path, "HEAD")
            assert (status, body) == (200, b"")
            assert without_body["content-length"] == headers["content-length"]
        for path in ("/serve.py", "/README.md", "/../agent.py", "/%2e%2e/agent.py", "//etc/passwd", "/watch/", "/."):
            assert (await trio.to_thread.run_sync(ask, site, path))[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await trio.to_thread.run_sync(ask, site, "/", method))[0] == 501


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_whatever_ends_it_ends_the_daemon_and_takes_its_files_along(how: signal.Signals) -> None:
    async with serving() as site:
        daemon = psutil.Process(site.daemon_pid)
        config = Path(daemon.cmdline()[-1])
        kept = await trio.Path(config).read_text()
        # Only the token's digest is kept anywhere, and both are for this machine's own use.
        assert site.token not in kept
        assert re.search(r'token_sha256 = "[0-9a-f]{64}"', kept)
        assert (await trio.Path(config.parent).stat()).st_mode & 0o077 == 0
        assert site.daemon_address.startswith("ws://127.0.0.1:")
        assert site.origin.startswith("http://127.0.0.1:")
        assert f'"{site.origin}"' in kept
        assert await site.stop(how) == 0
        assert not daemon.is_running()
        assert not await trio.Path(config.parent).exists()


@pytest.mark.proof
async def test_a_daemon_that_ends_by_itself_is_started_again_at_the_same_place_but_not_for_ever() -> None:
    async with serving() as site:
        first = site.daemon_pid
        for _ in range(3):
            before = site.daemon_pid
            os.kill(before, signal.SIGKILL)
            with trio.fail_after(30):
                await passes(lambda before=before: site.daemon_pid != before or site.process.poll() is not None)
            if site.process.poll() is None:
                port = int(site.daemon_address.rpartition(":")[2])
                async with await trio.open_tcp_stream("127.0.0.1", port):
                    pass
        assert site.daemon_pid != first
        # Three times in a row, each just after its start: it would only do it again.
        with trio.fail_after(30):
            assert await site.process.wait() == 1


async def test_a_port_that_is_taken_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await trio.run_process([*COMMAND, "--port", str(port)], check=False)
    assert process.returncode == 1
    assert f"serve.py: cannot serve on port {port}: Address already in use; choose another one with --port" in (
        capfd.readouterr().err
    )


async def test_the_browser_is_opened_without_the_token_on_its_command_line(tmp_path: Path) -> None:
    # A browser that notes how it was called, and what the file says that it was called with.
    browser, noted = tmp_path / "browser", tmp_path / "noted"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {noted}.part\ncat "${{1#file://}}" >> {noted}.part\nmv {noted}.part {noted}\n'
    )
    browser.chmod(0o755)
    async with serving("--open", env={"BROWSER": f"{browser} %s"}) as site:
        with trio.fail_after(30):
            await passes(noted.exists)
        called, content = noted.read_text().splitlines()
        assert site.token not in called
        assert (await trio.Path(called.removeprefix("file://")).stat()).st_mode & 0o077 == 0
        assert site.url.replace("&", "&amp;") in content
