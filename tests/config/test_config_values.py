"""What a configuration holds: defaults, the same rules for Python as for TOML, and a way back to TOML."""

import inspect
import subprocess
import sys
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hearth._util.toml import dump_value, show
from hearth.audit.log import AuditSettings
from hearth.config.exec import ExecParam, ExecTemplate
from hearth.config.hcp import HcpConfig
from hearth.config.listen import Endpoint, HttpConfig, TlsConfig, WebSocketConfig
from hearth.config.model import (
    ApprovalConfig,
    AuditConfig,
    BoardConfig,
    Config,
    FilesConfig,
    HcpPolicyConfig,
    LimitsConfig,
    PolicyConfig,
    ServerConfig,
    TasksConfig,
    ToolsConfig,
    default_socket,
    default_state_dir,
    load_config,
)
from hearth.errors import ConfigError
from hearth.fields import (
    AbsolutePath,
    Choice,
    Flag,
    Integer,
    ListOf,
    Mode,
    Number,
    Text,
    kind_of,
)
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.policy.rules import JobRules, Match, PolicyEntry, Rate

# --- the way back: a Config as TOML loads back equal -------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
PATHS = TEXT.map(lambda text: Path("/" + text))
RATES = st.from_regex(r"[1-9][0-9]{0,5}/([1-9][0-9]{0,5})?[smh]", fullmatch=True)
DIGESTS = st.from_regex("[0-9a-fA-F]{64}", fullmatch=True)
ADDRESSES = st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(2**64, 2**128 - 1).map(IPv6Address)
SANS = st.one_of(
    st.builds("{}:{}".format, st.sampled_from(["DNS", "URI", "email", "dirName", "RID"]), TEXT),
    ADDRESSES.map("IP:{}".format),
)
LISTEN = st.builds(Endpoint, ADDRESSES.map(str), st.integers(0, 65535))
ORIGINS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "app"]),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789.-", min_size=1, max_size=9) | st.just("[::1]"),
    st.just("") | st.integers(444, 65535).map(":{}".format),
)
ENV_NAMES = TEXT.map(lambda text: text.replace("=", "_"))
MATCHES = st.one_of(
    st.just({"any": True}),
    st.fixed_dictionaries(
        {"uid": st.integers(0, 2**32 - 2)},
        optional={"group": TEXT, "cert_subject": TEXT, "cert_san": SANS, "token_sha256": DIGESTS},
    ),
)
# Kinds whose values must have a certain form, where random text would seldom fit.
SPECIAL = {
    ("PolicyConfig", "match"): st.one_of(MATCHES, st.lists(MATCHES, min_size=1, max_size=3).map(tuple)),
    ("PolicyConfig", "rate"): st.dictionaries(TEXT, RATES, max_size=3),
    ("PolicyConfig", "max_risk"): st.integers(0, 2),
    ("PolicyConfig", "max_risk_ceiling"): st.none() | st.integers(2, 3),
    ("HcpConfig", "capabilities"): st.lists(
        PATHS.map(str) | st.from_regex("[A-Za-z0-9][A-Za-z0-9_-]*", fullmatch=True)
    ).map(tuple),
    ("HcpConfig", "max_artifact_bytes"): st.integers(1, 2**20),
    ("HcpConfig", "max_artifacts_bytes"): st.integers(2**20, 2**53),
    ("LimitsConfig", "session_rate"): RATES,
    ("LimitsConfig", "reject_rate"): RATES,
    ("PolicyConfig", "i2c"): st.none() | st.lists(st.sampled_from(["1:0x48", "1:*", "*:72"]), max_size=2).map(tuple),
    ("PolicyConfig", "can"): st.none() | st.lists(st.sampled_from(["can0:FAN_*", "can0:0x12"]), max_size=2).map(tuple),
    ("PolicyConfig", "hardware"): st.dictionaries(st.sampled_from(["laser", "pump"]), st.lists(TEXT).map(tuple)),
    ("PolicyConfig", "approval"): st.lists(
        st.builds(ApprovalConfig, from_risk=st.integers(1, 3), persons=st.integers(1, 16), other=st.booleans()),
        max_size=3,
        unique_by=lambda rule: rule.from_risk,
    ).map(tuple),
    ("ServerConfig", "socket"): st.none() | PATHS,
    ("ExecTemplate", "env"): st.dictionaries(ENV_NAMES, st.just("") | TEXT, max_size=2),
}


def values_of(kind):
    """A strategy for the values of a kind."""
    match kind:
        case Flag():
            return st.booleans()
        case Integer():
            return st.integers(kind._ge, kind._le)
        case Number():
            least = kind._above if kind._above is not None else kind._least
            numbers = st.floats(least, kind._le, exclude_min=kind._above is not None)
            return numbers | st.integers(int(least) + 1, int(kind._le))
        case Choice():
            return st.sampled_from(kind._options)
        case AbsolutePath():
            return PATHS
        case Mode():
            return st.integers(0, 0o777)
        case ListOf():
            return st.lists(values_of(kind.item), min_size=kind._least, max_size=3).map(tuple)
        case Text():
            return TEXT
    raise AssertionError(f"no strategy for {kind}")


def sections(cls, **given):
    """A strategy for the instances of a section."""
    fields = {}
    for field in attrs.fields(cls):
        kind = kind_of(field.type)
        if field.name in given:
            fields[field.name] = given[field.name]
        elif (special := SPECIAL.get((cls.__name__, field.name))) is not None:
            fields[field.name] = special
        elif attrs.has(field.type):
            fields[field.name] = sections(field.type)
        else:
            values = values_of(kind)
            fields[field.name] = st.none() | values if field.default is None else values
    return st.builds(cls, **fields)


def tls_sections():
    """[tls]: all four or none."""
    return st.just(TlsConfig()) | st.builds(TlsConfig, listen=LISTEN, cert=PATHS, key=PATHS, client_ca=PATHS)


@st.composite
def doors(draw, cls, **more):
    """[websocket] or [http]: over TLS, behind a proxy, on loopback, or not at all."""
    listen = draw(st.none() | LISTEN)
    if draw(st.booleans()):
        return cls(listen, draw(PATHS), draw(PATHS), draw(st.none() | PATHS), **more)
    away = listen is not None and not listen.is_loopback
    return cls(listen, plaintext=away or draw(st.booleans()), **more)


@st.composite
def websocket_sections(draw):
    """[websocket]."""
    more = {
        "origins": draw(st.lists(ORIGINS, max_size=3).map(tuple)),
        "ping_interval_s": draw(st.integers(1, 1000)),
        "ping_timeout_s": draw(st.floats(0.1, 1000)),
    }
    return draw(doors(WebSocketConfig, **more))


@st.composite
def http_sections(draw):
    """[http]."""
    more = {
        "origins": draw(st.lists(ORIGINS, max_size=3).map(tuple)),
        "hosts": draw(st.lists(st.sampled_from(["b.example", "[2001:db8::1]", "192.0.2.1"]), max_size=2).map(tuple)),
        "mcp": draw(st.none() | st.booleans()),
    }
    return draw(doors(HttpConfig, **more))


@st.composite
def templates(draw):
    names = draw(st.lists(st.from_regex("[a-z][a-z0-9_]{0,5}", fullmatch=True), unique=True, max_size=3))
    argv = [draw(PATHS.map(str).filter(lambda text: not set(text) & set("{}")))]
    argv += [f"-{draw(TEXT).replace('{', '{{').replace('}', '}}')}{{{name}}}" for name in names]
    rules = st.builds(ExecParam, pattern=st.just("[a-z]+"), description=TEXT) | st.builds(
        ExecParam, enum=st.lists(TEXT, min_size=1, max_size=3).map(tuple)
    )
    params = {name: draw(rules) for name in names}
    return draw(sections(ExecTemplate, argv=st.just(tuple(argv)), params=st.just(params)))


@st.composite
def configs(draw):
    names = st.from_regex("[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
    exec_templates = st.dictionaries(names, templates(), max_size=2)
    entries = draw(st.lists(sections(PolicyConfig), max_size=3, unique_by=lambda entry: entry.name))
    listeners = {"tls": draw(tls_sections()), "websocket": draw(websocket_sections()), "http": draw(http_sections())}
    try:
        Config(policy=tuple(entries), **listeners)
    except ConfigError:
        listeners = {}
    return Config(
        server=draw(sections(ServerConfig)),
        **listeners,
        hcp=draw(sections(HcpConfig)),
        board=draw(sections(BoardConfig)),
        audit=draw(sections(AuditConfig)),
        files=draw(sections(FilesConfig)),
        tools=draw(sections(ToolsConfig, exec=exec_templates, disable=st.just(()))),
        tasks=draw(sections(TasksConfig)),
        limits=draw(sections(LimitsConfig)),
        policy=tuple(entries),
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("config") / "hearth.toml"


# How long whole configurations take to make says nothing about them, but about the machine that the tests are on.
@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs())
def test_what_is_printed_loads_back_equal(file, config):
    file.write_bytes(config.to_toml().encode())
    assert load_config(file) == config


def test_the_defaults_are_printed_whole_and_load_back_equal(file):
    text = Config().to_toml()
    file.write_text(text)
    assert load_config(file) == Config()
    for section in Config().sections().keys() - {"policy"}:
        assert f"[{section}]" in text
    assert "\nidle_ttl_s = 300\n" in text
    assert "\n# socket is not set\n" in text


def test_loaded_values_have_the_types_that_python_code_relies_on(file):
    file.write_text(
        "[server]\nsocket = '/run/x'\nsocket_mode = '0600'\n[files]\nread = ['/srv']\n"
        "[tools.exec]\na = ['/bin/true']\n[[policy]]\nname = 'p'\nmatch = [{ uid = 0 }]\n"
    )
    config = load_config(file)
    assert config.server.socket == Path("/run/x")
    assert config.server.socket_mode == 0o600
    assert config.files.read == (Path("/srv"),)
    assert config.tools.exec == {"a": ExecTemplate(argv=("/bin/true",))}
    assert config.policy == (PolicyConfig(name="p", match=({"uid": 0},)),)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ANY_VALUE = st.recursive(
    st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(value=ANY_VALUE)
def test_any_value_that_toml_can_hold_reads_back_as_it_was(value):
    import tomllib

    read = tomllib.loads(f"x = {dump_value(value)}")["x"]
    assert repr(read) == repr(value)


def test_what_toml_cannot_hold_is_refused_by_the_writer():
    with pytest.raises(TypeError, match="no notation for NoneType"):
        dump_value([None])
    with pytest.raises(UnicodeEncodeError):
        dump_value("\ud800")


def test_a_wrong_value_is_shown_on_one_line():
    assert show("a\nb") == '"a\\nb"'
    assert show({"a": 1}) == "a table"
    assert show("\ud800") == "\ud800"


# --- Python code keeps the rules of the file ---------------------------------------------------------------------

WRONG = [
    (lambda: LimitsConfig(max_batch=0), "LimitsConfig.max_batch: expected an integer ≥ 1, got 0"),
    (lambda: FilesConfig(write=(Path("a"), Path("b"))), "FilesConfig.write[1]: expected an absolute path, got"),
    (lambda: ServerConfig(socket_mode="0660"), "ServerConfig.socket_mode: expected a string of octal digits"),
    (lambda: PolicyConfig("a", {}), "PolicyConfig.match: expected a table with at least one of uid, gid"),
    (lambda: PolicyConfig("a", [{"uid": 1}]), "PolicyConfig.match: expected a table"),
    (lambda: PolicyConfig("a", {"uid": 1}, rate={"a": 5}), "PolicyConfig.rate.a: expected a rate"),
    (lambda: WebSocketConfig("127.0.0.1:7118"), "WebSocketConfig.listen: expected an address and port such as"),
    (lambda: WebSocketConfig(Endpoint("localhost", 1)), "got Endpoint(host='localhost', port=1)"),
    (lambda: WebSocketConfig(origins=("HTTP://x",)), "WebSocketConfig.origins: expected an array as tuple"),
    (lambda: WebSocketConfig(Endpoint("192.0.2.1", 1)), "cert and key not set"),
    (lambda: TlsConfig(Endpoint("::", 1)), "cert, key and client_ca not set"),
    (lambda: PolicyConfig("a", {"cert_san": "arm"}), "PolicyConfig.match.cert_san: expected DNS:NAME, IP:ADDRESS"),
    (lambda: Config(websocket=WebSocketConfig(Endpoint("::", 1), Path("/c"), Path("/k"))), "[websocket]: [::]:1 is"),
    (lambda: HcpConfig(max_jobs=0), "HcpConfig.max_jobs: expected an integer ≥ 1, got 0"),
    (lambda: HcpConfig(max_artifact_bytes=2, max_artifacts_bytes=1), "expected at most max_artifacts_bytes (1), got 2"),
    (lambda: HcpPolicyConfig(max_risk="R6"), 'HcpPolicyConfig.max_risk: expected "R1", "R2", "R3", "R4" or "R5", got'),
    (lambda: ToolsConfig(exec={"": ExecTemplate(argv=("/a",))}), "exec: expected a name of letters"),
]


@pytest.mark.parametrize(("build", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_a_configuration_built_in_python_keeps_the_same_rules(build, told):
    with pytest.raises(ConfigError) as caught:
        build()
    assert told in str(caught.value)


# --- agreement with the modules that take the values over --------------------------------------------------------


def test_the_audit_defaults_are_those_of_the_audit_log():
    ours = AuditConfig()
    settings = AuditSettings(path=Path("/a"), key=Path("/k"))
    for name in ("durability", "rotate_bytes", "checkpoint_every", "checkpoint_interval_s", "reserve_bytes"):
        assert getattr(ours, name) == getattr(settings, name)


@pytest.mark.slow
@given(entry=sections(PolicyConfig))
def test_a_policy_entry_that_loads_is_one_that_the_policy_takes(entry):
    given = {name: value for name, value in attrs.asdict(entry, recurse=False).items() if value is not None}
    approval = [attrs.asdict(rule) for rule in entry.approval]
    taken = PolicyEntry(**{**given, "hcp": attrs.asdict(entry.hcp), "approval": approval})
    assert (taken.name, taken.max_risk, taken.tools) == (entry.name, entry.max_risk, entry.tools)
    assert attrs.asdict(taken.hcp) == attrs.asdict(entry.hcp)


def test_the_defaults_of_hcp_are_those_of_the_policy():
    assert attrs.asdict(HcpPolicyConfig()) == attrs.asdict(JobRules())


def test_risks_and_classifications_are_those_of_hcp():
    risks, data = (
        kind_of(attrs.fields_dict(HcpPolicyConfig)[name].type) for name in ("max_risk", "max_data_classification")
    )
    assert risks._options == RISKS
    assert data._options == CLASSIFICATIONS


@given(text=st.text("0123456789/smh ", max_size=9))
def test_a_rate_loads_exactly_when_the_policy_can_read_it(text):
    def accepts(read):
        try:
            read()
        except ConfigError:
            return False
        return True

    assert accepts(lambda: PolicyConfig("a", {"uid": 1}, rate={"x": text})) == accepts(lambda: Rate.parse(text))


@given(
    text=st.text("DNSIPURdirNamel: .019af%\n", max_size=9)
    | st.builds("{}:{}".format, st.sampled_from(["DNS", "IP", "URI", "ip", "mail"]), st.text("0127.:af", max_size=9))
    | SANS
)
def test_an_alternative_name_loads_exactly_when_the_policy_can_read_it(text):
    def accepts(read):
        try:
            read()
        except ConfigError:
            return False
        return True

    assert accepts(lambda: PolicyConfig("a", {"cert_san": text})) == accepts(lambda: Match(cert_san=text))


# --- where things are by default ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({}, 0, "/run/hearth/hearth.sock"),
        ({}, 1000, "/tmp/hearth/hearth.sock"),
        ({"RUNTIME_DIRECTORY": "/run/robot"}, 1000, "/run/robot/hearth.sock"),
        ({"RUNTIME_DIRECTORY": "/run/a:/run/b"}, 0, "/run/a/hearth.sock"),
        ({"RUNTIME_DIRECTORY": "relative"}, 0, "/run/hearth/hearth.sock"),
    ],
)
def test_the_socket_is_where_the_draft_says(environ, uid, path):
    assert default_socket(environ, uid) == Path(path)


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/robot", "HOME": "/root"}, 0, "/var/lib/robot"),
        ({"HOME": "/root"}, 0, "/var/lib/hearth"),
        ({"XDG_STATE_HOME": "/home/eve/state", "HOME": "/home/eve"}, 1000, "/home/eve/state/hearth"),
        ({"XDG_STATE_HOME": "state", "HOME": "/home/eve"}, 1000, "/home/eve/.local/state/hearth"),
        ({"HOME": "/home/eve"}, 1000, "/home/eve/.local/state/hearth"),
    ],
)
def test_the_audit_log_is_kept_where_its_user_keeps_state(environ, uid, path):
    assert default_state_dir(environ, uid) == Path(path)


def test_a_user_without_a_home_is_told_what_to_set():
    with pytest.raises(ConfigError, match=r"uid 1000 has no HOME .* set \[audit\] path and key"):
        default_state_dir({}, 1000)


# --- start-up cost -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_defaults_load_no_toml_parser_and_no_cattrs():
    code = """
    import sys
    before = set(sys.modules)  # a coverage run has loaded things already
    from hearth.config.model import load_config
    load_config(None)
    loaded = {"cattrs", "tomllib", "difflib"} & (sys.modules.keys() - before)
    assert not loaded, loaded
    """
    subprocess.run([sys.executable, "-c", inspect.cleandoc(code)], check=True, timeout=30)
