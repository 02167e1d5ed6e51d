"""The reference page and the example say what the code does."""

import re
from pathlib import Path

import attrs
import pytest

from hearth._util.toml import dump_value
from hearth.config.agentcard import CardConfig
from hearth.config.amqp import AmqpConfig
from hearth.config.ask import AskConfig
from hearth.config.exec import ExecParam, ExecTemplate
from hearth.config.hcp import HcpConfig
from hearth.config.listen import HttpConfig, TlsConfig, WebSocketConfig
from hearth.config.model import (
    ApprovalConfig,
    AttestConfig,
    AuditConfig,
    BoardConfig,
    Config,
    FilesConfig,
    HcpPolicyConfig,
    LimitsConfig,
    LogConfig,
    PolicyConfig,
    SandboxConfig,
    ServerConfig,
    TasksConfig,
    ToolsConfig,
    load_config,
)
from hearth.errors import ConfigError
from hearth.fields import kind_of

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference/config.md"
EXAMPLE = ROOT / "examples/hearth.toml"

TABLES = {
    "[server]": ServerConfig,
    "[tls]": TlsConfig,
    "[websocket]": WebSocketConfig,
    "[http]": HttpConfig,
    "[card]": CardConfig,
    "[hcp]": HcpConfig,
    "[amqp]": AmqpConfig,
    "[board]": BoardConfig,
    "[audit]": AuditConfig,
    "[attest]": AttestConfig,
    "[log]": LogConfig,
    "[files]": FilesConfig,
    "[tools]": ToolsConfig,
    "[tasks]": TasksConfig,
    "[ask]": AskConfig,
    "[tools.exec.NAME]": ExecTemplate,
    "[tools.exec.NAME.params.PARAM]": ExecParam,
    "[sandbox]": SandboxConfig,
    "[limits]": LimitsConfig,
    "[[policy]]": PolicyConfig,
    "[policy.approval]": ApprovalConfig,
    "[policy.hcp]": HcpPolicyConfig,
}


def rows_of_the_page():
    """Per heading, the (key, type, default) of each row."""
    found, heading = {}, ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| `"):
            key, kind, default, _meaning = line.strip("| ").split(" | ", 3)
            found.setdefault(heading, []).append((key.strip("`"), kind, default))
    return found


def rows_of_the_code(cls):
    for field in attrs.fields(cls):
        kind = kind_of(field.type)
        default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default
        if default is attrs.NOTHING:
            told = "*required*"
        elif default is None:
            told = "not set"
        elif attrs.has(type(default)):
            told = "`{}`"
        else:
            told = f"`{dump_value(kind.dump(default) if kind else list(default) if default == () else default)}`"
        yield field.name, kind.expected if kind else "an array of tables" if default == () else "a table", told


@pytest.mark.parametrize("table", TABLES)
def test_the_reference_lists_every_key_with_its_type_and_default(table):
    assert rows_of_the_page()[table] == list(rows_of_the_code(TABLES[table]))


def test_the_reference_has_no_table_that_the_code_does_not_know():
    assert set(rows_of_the_page()) == set(TABLES)


def test_the_mistakes_that_the_reference_shows_are_told_in_these_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hearth.toml").write_text(
        '[limits]\nidle_ttl_s = "5"\nmax_bacth = 1\n'
        "[[policy]]\nname = 'a'\nmatch = { any = true }\n"
        "[[policy]]\nname = 'b'\nmatch = { any = true }\nrate = { 'gpio.set' = 'fast' }\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(Path("hearth.toml"))
    assert f"```\n{caught.value}\n```" in REFERENCE.read_text(encoding="utf-8")


def uncommented():
    """The example with each "#key = …" and "#[table]" in use."""
    return re.sub(r"^#(?=[a-z\[])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_example_loads():
    config = load_config(EXAMPLE)
    assert config.board.profile == "sim"
    assert config.limits == LimitsConfig()


def test_the_example_loads_with_every_key_in_use(tmp_path):
    file = tmp_path / "hearth.toml"
    file.write_text(uncommented(), encoding="utf-8")
    config = load_config(file)
    assert config.limits == LimitsConfig(), "what the example shows there are the defaults"
    assert config.audit == attrs.evolve(AuditConfig(), path=config.audit.path, key=config.audit.key)
    assert not config.tls.listen.is_loopback
    assert config.websocket.origins == ("http://127.0.0.1:8000",)
    assert config.http.hosts == ("bench.example",)
    assert config.tools.exec["ping"].fill({"count": "3", "host": "robot.local"})[-1] == "robot.local"


@pytest.mark.parametrize("table", TABLES)
def test_the_example_shows_every_key(table):
    text = uncommented()
    for field in attrs.fields(TABLES[table]):
        assert re.search(rf"^[^#\n]*\b{field.name}( =|\]|\.)", text, re.MULTILINE), f"{field.name} of {table}"


def test_the_example_names_no_other_section():
    assert set(re.findall(r"^\[+(\w+)", uncommented(), re.MULTILINE)) == Config().sections().keys()
