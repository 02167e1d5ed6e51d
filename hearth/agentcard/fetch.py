"""Fetching of an AgentCard from an untrusted server, by one bounded HTTP exchange (draft §4, §8.5).

This module owns the bounds (time, size, redirects), the check of addresses before a request, and the refusal of a card
that leads elsewhere than it came from. It uses no proxies and no credentials of the environment: a fetch reveals no
secret.

It also owns the cache of fetched cards (`CardCache`): one directory with one file for each URL, replaced whole. A card
is kept until it expires, and then revalidated (draft §4). The cache is blocking and never raises: a card that cannot be
kept is fetched again. Its files are public data.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import ssl
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import trio
from attrs import frozen

from hearth._version import __version__
from hearth.agentcard.document import Finding, parse_uri
from hearth.agentcard.validate import read_card
from hearth.errors import CarrierError, ConfigError, HearthError
from hearth.transport.address import TlsAddress
from hearth.transport.tls import connect_failure, context_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WELL_KNOWN = "/.well-known/agentcard"
TIME_S = 15.0
"""Seconds for a whole fetch, redirects included."""
MAX_BYTES = 1 << 20
"""Limit of a card's size; hearth's largest has a tenth of it."""
MAX_REDIRECTS = 3
MAX_AGE_S = 86_400
"""Seconds: a card is fetched again after a day at the latest, whatever its server allows."""

_ACCEPT = "application/agentcard+json, application/json;q=0.9"
_TYPES = ("application/agentcard+json", "application/json")
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_CACHE = re.compile(r'\s*([a-z-]+)\s*(?:=\s*"?([^",]*)"?)?', re.IGNORECASE)


class CardNotFetched(HearthError):
    """The server's answer is not a usable card; `findings` has the validator's faults."""

    def __init__(self, message: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


@frozen
class Fetched:
    """A fetched card: its bytes, the URL after all redirects, its ETag, and the seconds for which it may be kept.

    `max_age` is None if it must not be kept. `unchanged` is True if the bytes are those of the known card.
    """

    url: str
    body: bytes
    etag: str | None = None
    max_age: int | None = 0
    unchanged: bool = False


def card_url(text: str, *, insecure_http: bool = False) -> str:
    """Return the URL that `text` means; a bare origin gets the well-known path. Raises ConfigError.

    Plain http is only for this machine, except with `insecure_http`: on the network the endpoint could be changed
    (§8.5).
    """
    found = parse_uri(text)
    if found is None or found.scheme not in _PORTS or not found.host:
        raise ConfigError(f"{text!r} is no URL of a card; write one such as https://agents.example.com")
    url = httpx2.URL(text)
    if url.userinfo:
        raise ConfigError("a card's URL holds no password, because a card is public; leave out the part before the @")
    _check_plain(url, insecure_http=insecure_http)
    url = url.copy_with(fragment=None)
    return str(url if url.path not in ("", "/") or url.query else url.copy_with(path=WELL_KNOWN))


def _check_plain(url: httpx2.URL, *, insecure_http: bool) -> None:
    if url.scheme == "http" and not insecure_http and not is_here(url.host):
        raise ConfigError(
            f"{url}: over plain http any machine on the way can put another endpoint into the card; use https, or "
            "--insecure-http if that does not matter"
        )


def is_here(host: str) -> bool:
    """Return True if the host of a URL is this machine by its form; no name is looked up."""
    host = host.rstrip(".").lower()
    return host in ("localhost", "::1") or host.endswith(".localhost") or bool(_LOOPBACK.fullmatch(host))


_LOOPBACK = re.compile(r"127(?:\.[0-9]{1,3}){3}")


async def fetch_card(
    url: str, *, ca: Path | None = None, insecure_http: bool = False, known: Fetched | None = None
) -> Fetched:
    """Fetch the card at `url`, a result of `card_url`, within TIME_S; revalidate a `known` card by its ETag.

    Follows at most MAX_REDIRECTS redirects, and none from https to http or onto this machine. Raises CarrierError (no
    answer, or no trusted certificate), CardNotFetched (the answer is not a card), and ConfigError.
    """
    with trio.move_on_after(TIME_S):
        here = httpx2.URL(url)
        for _ in range(MAX_REDIRECTS + 1):
            async with _client(here, ca) as client:
                onward = await _ask(client, here, known, ca)
            if isinstance(onward, Fetched):
                return onward
            _check_redirect(here, onward, insecure_http=insecure_http)
            here = onward
        raise CardNotFetched(f"{url} redirects more than {MAX_REDIRECTS} times; use the address of the card itself")
    raise CarrierError(f"{url} did not send a card within {TIME_S:g} s; is it the right server?")


def _client(url: httpx2.URL, ca: Path | None) -> httpx2.AsyncClient:
    # Reading the system's CAs takes longer than the rest of the fetch: plain http gets a context without CAs.
    secure = url.scheme == "https" or ca is not None
    verify = context_for(TlsAddress(url.host, ca=ca)) if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    headers = {"User-Agent": f"hearth/{__version__}"}
    return httpx2.AsyncClient(verify=verify, trust_env=False, timeout=None, headers=headers)


async def _ask(
    client: httpx2.AsyncClient, url: httpx2.URL, known: Fetched | None, ca: Path | None
) -> Fetched | httpx2.URL:
    """Send one request; return the card, or the target of a redirect."""
    # Without a content encoding the counted bytes are the read bytes: a megabyte cannot expand to a gigabyte.
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity"}
    if known is not None and known.etag is not None and known.url == str(url):
        headers["If-None-Match"] = known.etag
    try:
        async with client.stream("GET", url, headers=headers) as answer:
            if answer.status_code in _REDIRECTS:
                return _target(url, answer.headers.get("location"))
            if answer.status_code == httpx2.codes.NOT_MODIFIED and known is not None and "If-None-Match" in headers:
                return Fetched(known.url, known.body, known.etag, _max_age(answer.headers), unchanged=True)
            _check_answer(url, answer)
            body = await _body(url, answer)
    except httpx2.HTTPError as error:
        raise CarrierError(f"{url}: {_why(error, url, ca)}") from None
    return Fetched(str(url), body, answer.headers.get("etag"), _max_age(answer.headers))


def _target(url: httpx2.URL, location: str | None) -> httpx2.URL:
    try:
        target = url.join(location or "")
    except httpx2.InvalidURL:
        target = httpx2.URL("")
    if not location or target.scheme not in _PORTS or not target.host or target.userinfo:
        raise CardNotFetched(f"{url} redirects to no usable address: {(location or '')[:80]!r}")
    return target.copy_with(fragment=None)


def _check_redirect(url: httpx2.URL, target: httpx2.URL, *, insecure_http: bool) -> None:
    """Raise CardNotFetched for a redirect to an address that the user would not have asked for."""
    if url.scheme == "https" and target.scheme == "http":
        raise CardNotFetched(
            f"{url} redirects from https to plain http ({target}), where any machine on the way could change the card"
        )
    if is_here(target.host) and not is_here(url.host):
        raise CardNotFetched(f"{url} redirects to this machine ({target}), which is refused")
    try:
        _check_plain(target, insecure_http=insecure_http)
    except ConfigError as error:
        raise CardNotFetched(f"{url} redirects to {error}") from None


def _check_answer(url: httpx2.URL, answer: httpx2.Response) -> None:
    if answer.status_code != httpx2.codes.OK:
        hint = "" if url.path == WELL_KNOWN else f"; a card is usually at {WELL_KNOWN}"
        raise CardNotFetched(f"{url} answers with status {answer.status_code} and no card{hint}")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _TYPES:
        raise CardNotFetched(f"{url} sends {kind[:80] or 'something'!r} and no card, which is {' or '.join(_TYPES)}")
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise CardNotFetched(f"{url} sends the card compressed, although it was asked not to")


async def _body(url: httpx2.URL, answer: httpx2.Response) -> bytes:
    body = bytearray()
    # Leave the loop by cancellation: `break` would leave the library's nested generators to the garbage collector.
    with trio.CancelScope() as reading:
        async for part in answer.aiter_raw():
            body += part
            if len(body) > MAX_BYTES:
                reading.cancel()
    if len(body) > MAX_BYTES:
        raise CardNotFetched(f"{url} sends more than {MAX_BYTES} bytes; no card is so large")
    return bytes(body)


def _max_age(headers: Mapping[str, str]) -> int | None:
    """Return the seconds for which an answer may be kept, by Cache-Control and Age (RFC 9111); None for not at all.

    Without max-age, or with `no-cache`, it is 0: the answer may be kept, and is revalidated each time.
    """
    directives = {match[1].lower(): match[2] for match in _CACHE.finditer(headers.get("cache-control", ""))}
    if "no-store" in directives:
        return None
    age, most = headers.get("age", "0"), directives.get("max-age")
    if "no-cache" in directives or most is None or not _COUNT.fullmatch(most):
        return 0
    return max(0, min(int(most), MAX_AGE_S) - (int(age) if _COUNT.fullmatch(age) else 0))


_COUNT = re.compile(r"[0-9]{1,12}")


def _why(error: httpx2.HTTPError, url: httpx2.URL, ca: Path | None) -> str:
    """Return why there is no answer, in words; for a certificate that is not accepted, with the cure."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            address = TlsAddress(url.host, url.port or _PORTS["https"], ca=ca)
            return connect_failure(cause, address).replace("?ca=FILE", "--ca FILE")
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def examine(fetched: Fetched, *, any_scheme: bool = False) -> Mapping[str, Any]:
    """Return the fetched card. Raises CardNotFetched if it is not valid, or leads elsewhere than it came from.

    Its endpoint's URL must have the scheme of the fetch (§8.5). With `any_scheme` this applies only to http and https
    endpoints, which can be compared: the card may then lead to a program (stdio) or to another protocol.
    """
    card, findings = read_card(fetched.body)
    if card is None or findings:
        raise CardNotFetched(f"{fetched.url} sends a card that is not valid", tuple(findings))
    came, leads = fetched.url.partition(":")[0], str(card["endpoint"]["url"]).partition(":")[0].lower()
    if leads != came and not (any_scheme and leads not in _PORTS):
        cure = "" if leads in _PORTS else "; --any-scheme takes it"
        problem = f"leads to {leads}: and was fetched over {came}:, so any machine on the way may have changed it{cure}"
        found = Finding(
            "/endpoint/url", "§8.5", problem, f"the agent must be reached over {came}, or its card over {leads}"
        )
        raise CardNotFetched(f"{fetched.url} sends a card that leads elsewhere", (found,))
    return card


MAX_CARDS = 256
"""Limit of the files in the directory; the oldest are removed first."""

_FORMAT = 1


def default_directory(environ: Mapping[str, str]) -> Path | None:
    """Return $XDG_CACHE_HOME/hearth/cards, by default beneath ~/.cache; None for a user without a home."""
    from pathlib import Path

    base, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if base.startswith("/"):
        return Path(base) / "hearth/cards"
    return Path(home) / ".cache/hearth/cards" if home.startswith("/") else None


class CardCache:
    """The cards in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, url: str, now: float) -> tuple[Fetched, bool] | None:
        """Return the cached card of a URL, and True if it is still fresh; `now` in epoch seconds."""
        try:
            with self._file(url).open("rb") as file:
                kept = orjson.loads(file.read(2 * MAX_BYTES))
            return _read(kept, url, now)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, url: str, fetched: Fetched, now: float) -> None:
        """Cache an answer, or remove the cached one if this answer must not be kept."""
        file = self._file(url)
        with contextlib.suppress(OSError):
            if fetched.max_age is None:
                file.unlink(missing_ok=True)
                return
            document = {
                "format": _FORMAT,
                "asked": url,
                "url": fetched.url,
                "etag": fetched.etag,
                "at": now,
                "max_age": fetched.max_age,
                "body": base64.b64encode(fetched.body).decode("ascii"),
            }
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_name(f"{file.name}.{os.getpid()}.new")
            draft.write_bytes(orjson.dumps(document))
            draft.replace(file)
            self._prune()

    def _file(self, url: str) -> Path:
        return self._directory / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    def _prune(self) -> None:
        files = sorted(self._directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_CARDS]:
            file.unlink(missing_ok=True)


def _read(kept: Any, url: str, now: float) -> tuple[Fetched, bool]:
    """Return the card of a cache file. Raises ValueError, KeyError or TypeError for a file of another form."""
    if kept["format"] != _FORMAT or kept["asked"] != url:
        raise ValueError("another format, or another URL's")
    at, max_age = float(kept["at"]), min(int(kept["max_age"]), MAX_AGE_S)
    etag = kept["etag"] if isinstance(kept["etag"], str) else None
    fetched = Fetched(str(kept["url"]), base64.b64decode(kept["body"], validate=True), etag, max_age)
    # A clock that was set back must not keep a card alive.
    return fetched, 0 <= now - at < max_age
