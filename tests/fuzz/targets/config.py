"""hearth.toml: any text is a Config, or a ConfigError of which every line names a key or a place in the file.

What loads is rendered by `to_toml`, and loads back equal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hearth._util.toml import parse_toml
from hearth.config.model import Config, read_config
from hearth.errors import ConfigError

from .. import ROOT
from ..mutation import lines_of

if TYPE_CHECKING:
    import random

_LINE = re.compile(
    r"hearth\.toml: ("
    r"\[\[?[^\x00-\x1f\x7f]+\]"  # [table] key, or [[table]] #2 key
    r"|line [0-9]+(, column [0-9]+|): |at the end: "
    r"|arrays or tables are nested too deeply; |line [0-9]+: byte 0x)"
)
DICTIONARY = (
    b"[server]\n", b"[tls]\n", b"[websocket]\n", b"[http]\n", b"[card]\n", b"[hcp]\n", b"[board]\n", b"[audit]\n",
    b"[files]\n",
    b"[tools]\n", b"[tools.exec]\n", b"[limits]\n", b"[[policy]]\n", b"[policy.hcp]\n", b"match = ",
    b"{ any = true }", b"'''", b'"""',
)  # fmt: skip


def _load(data: bytes) -> Config:
    return read_config(parse_toml(data, "hearth.toml"), "hearth.toml")


def check(data: bytes) -> None:
    """See the package."""
    try:
        config = _load(data)
    except ConfigError as error:
        lines = str(error).split("\n")
        for line in lines:
            assert _LINE.match(line), f"a line without a place: {line!r}"
            assert line.isprintable(), f"a line that is not for a terminal: {line!r}"
        assert all(lines)
        return
    written = config.to_toml()
    again = _load(written.encode())
    assert again == config, "what was loaded does not read back equal"
    assert again.to_toml() == written


def _example() -> bytes:
    """examples/hearth.toml with every key in force."""
    text = (ROOT / "examples/hearth.toml").read_text(encoding="utf-8")
    return re.sub(r"(?m)^#(?=[a-z\[])", "", text).encode()


def seeds() -> list[bytes]:
    """The example, whole and by its tables without their comments, and what the defaults are written as."""
    lines = [line for line in _example().split(b"\n") if line and not line.startswith(b"#")]
    tables: list[list[bytes]] = [[]]
    for line in lines:
        if line.startswith(b"["):
            tables.append([])
        tables[-1].append(line)
    defaults = Config().to_toml().encode()
    return [b"\n".join(table) for table in tables[1:]] + [b"\n".join(lines), defaults, *defaults.split(b"\n\n")]


_POOL = sorted({line for seed in seeds() for line in seed.split(b"\n") if line and not line.startswith(b"#")})


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Lines of the example put in, taken out, changed."""
    return lines_of(data, rng, _POOL)
