"""Whether a new policy removes something and lets a principal do more: by structure, and never too rarely."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve, fields, frozen
from hypothesis import given, settings, strategies as st

from hearth._util.toml import parse_toml
from hearth.actors import build
from hearth.config.model import read_config
from hearth.errors import ConfigError
from hearth.policy.change import PolicyChange, compare, resets_halt
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.policy.principal import Principal
from hearth.policy.rules import RIGHTS, Grant, JobRules, PolicyEntry, Scope, decide, default_policy
from hearth.tools import Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@frozen
class Tool:
    name: str
    rate: str = "10/s"
    default_rate: str | None = None
    resolves_to: frozenset[str] = frozenset()


TOOLS = {name: Tool(name) for name in ("gpio.get", "gpio.set", "i2c.read", "i2c.write")}


def changed(former: Sequence[PolicyEntry], new: Sequence[PolicyEntry], **uids: int) -> PolicyChange:
    return compare(former, new, TOOLS, uids)


def entry(name: str, **more: Any) -> PolicyEntry:
    return PolicyEntry(**{"name": name, "match": {"user": name}, **more})


OWNER = entry("owner", match={"uid": 1000}, rights=RIGHTS)
AGENT = entry(
    "agent", match={"token_sha256": "1" * 64}, max_risk=1, tools=("gpio.*",), lines=("PUMP",), rate={"*": "2/s"}
)
ASKED = evolve(AGENT, approval=[{"from_risk": 1, "persons": 2}])
ANY = entry("any", match={"any": True}, max_risk=0)
OPEN = entry("open", match={"any": True}, rights=RIGHTS)


@pytest.mark.parametrize(
    ("former", "new"),
    [
        ([OWNER, ASKED], [OWNER, AGENT]),
        ([OWNER, ASKED], [OWNER, evolve(ASKED, approval=[{"from_risk": 2, "persons": 2}])]),
        ([OWNER, ASKED], [OWNER, evolve(ASKED, approval=[{"from_risk": 1}])]),
        ([OWNER, ASKED], [OWNER, evolve(ASKED, approval=[*ASKED.approval, {"from_risk": 2, "persons": 1}])]),
        ([OWNER, ASKED], [OWNER, evolve(ASKED, approval=[{"from_risk": 1, "persons": 2, "right": "observe"}])]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, tools=("*",))]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, lines=None)]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, lines=("*",))]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, rate={})]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, rate={"*": "20/s"})]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, max_risk=2, max_risk_ceiling=2)]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, match={"any": True})]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, hcp={"max_risk": "R5"}, tools=("gpio.get",), rights=["observe"])]),
        ([evolve(AGENT, hcp={"capabilities": "a"})], [AGENT]),
        ([evolve(AGENT, hcp={"max_risk": "R1"})], [AGENT]),
        ([evolve(AGENT, hcp={"max_data_classification": "T1"})], [AGENT]),
        ([AGENT, OPEN], [OPEN]),
        ([OWNER, AGENT, ANY], [OWNER, ANY]),
        ([AGENT, OPEN], [OPEN, AGENT]),
        ([evolve(AGENT, match=[{"token_sha256": "1" * 64}, {"uid": 7}]), OPEN], [AGENT, OPEN]),
        ([OWNER, AGENT], [OWNER, entry("new")]),
        ([AGENT], default_policy(1000, 5)),
    ],
)
def test_what_removes_something_and_lets_a_principal_do_more_is_told(former, new) -> None:
    change = changed(former, new)
    assert change.widens_silently
    assert all(isinstance(line, str) and line for line in (*change.removed, *change.allows))


@pytest.mark.parametrize(
    ("former", "new"),
    [
        ([OWNER, AGENT], [OWNER]),
        ([AGENT, OWNER], [OWNER]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, tools=("gpio.get",))]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, tools=())]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, lines=())]),
        ([OWNER, evolve(AGENT, lines=None)], [OWNER, AGENT]),
        ([OWNER, evolve(AGENT, lines=("P*",))], [OWNER, evolve(AGENT, lines=("PU*", "PUMP"))]),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, rate={"*": "1/s"}, max_risk=0, max_risk_ceiling=0)]),
        ([OWNER, AGENT], [OWNER, ASKED]),
        ([OWNER, AGENT], [evolve(OWNER, rights=["observe"]), AGENT]),
        ([OWNER, AGENT], []),
        ([OWNER, AGENT], [OWNER, evolve(AGENT, name="the agent")]),
        ([entry("alice"), OWNER], [OWNER]),
    ],
)
def test_what_only_takes_rights_away_is_never_told(former, new) -> None:
    assert not changed(former, new, alice=1001).allows


def test_a_user_whose_uid_is_not_known_may_be_the_one_of_another_entry() -> None:
    narrow = entry("alice", max_risk=0)
    assert changed([narrow, OWNER], [OWNER]).widens_silently
    assert changed([narrow, OWNER], [OWNER], alice=1000).widens_silently
    assert not changed([narrow, OWNER], [OWNER], alice=1001).allows


def test_what_only_adds_is_told_and_removes_nothing() -> None:
    change = changed([OWNER], [OWNER, AGENT])
    assert change == PolicyChange((), ("policy 'agent': a session for whom no entry matched, 2 tools up to risk 1",))
    change = changed([OWNER, AGENT], [OWNER, evolve(AGENT, tools=("gpio.*", "i2c.read"), rights=["observe"])])
    assert change == PolicyChange((), ("policy 'agent': tools i2c.read; rights observe",))


def test_the_line_of_a_change_names_what_and_how_much() -> None:
    many = {f"t.{number}": Tool(f"t.{number}") for number in range(20)}
    change = compare([evolve(AGENT, tools=("x",))], [evolve(AGENT, tools=("t.*",))], many)
    assert change.removed == ("policy 'agent': tools",)
    (line,) = change.allows
    assert line.endswith("t.13, t.14, t.15 and 12 more")


def test_someone_can_end_a_halt_if_an_entry_has_the_right() -> None:
    assert resets_halt([AGENT, OWNER])
    assert not resets_halt([AGENT, evolve(OWNER, rights=["observe"])])


# --- for random policies ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "*", "a*", "?", "[ab]", "b?"])
PATTERNS = st.lists(NAMES, max_size=2).map(tuple)
DIGESTS = ["1" * 64, "2" * 64]
MATCHES = st.one_of(
    st.just({"any": True}),
    st.fixed_dictionaries(
        {"uid": st.integers(0, 2)},
        optional={"gid": st.integers(0, 2), "group": st.sampled_from("gh"), "user": st.sampled_from("uv")},
    ),
    st.fixed_dictionaries({"gid": st.integers(0, 2)}, optional={"group": st.sampled_from("gh")}),
    st.fixed_dictionaries({"user": st.sampled_from("uv")}),
    st.fixed_dictionaries({"cert_subject": st.sampled_from(["CN=a", "CN=b"])}),
    st.fixed_dictionaries(
        {"cert_san": st.sampled_from(["DNS:a", "DNS:b"])}, optional={"cert_subject": st.just("CN=a")}
    ),
    st.fixed_dictionaries({"token_sha256": st.sampled_from(DIGESTS)}),
    st.fixed_dictionaries({"amqp_user": st.sampled_from("ab")}),
)
APPROVALS = st.lists(
    st.fixed_dictionaries(
        {"from_risk": st.integers(1, 3)},
        optional={"persons": st.integers(1, 2), "other": st.booleans(), "right": st.sampled_from(["approve", "admin"])},
    ),
    max_size=2,
    unique_by=lambda rule: rule["from_risk"],
)
KEYS: Mapping[str, st.SearchStrategy[Any]] = {
    "max_risk": st.integers(0, 2),
    "max_risk_ceiling": st.integers(2, 3),
    "tools": st.lists(st.sampled_from(["*", "gpio.*", "gpio.get", "i2c.?rite"]), max_size=2).map(tuple),
    "rate": st.dictionaries(
        st.sampled_from(["*", "gpio.*", "gpio.set"]), st.sampled_from(["1/s", "100/m", "50/10s"]), max_size=2
    ),
    "rights": st.sets(st.sampled_from(RIGHTS), max_size=2),
    "approval": APPROVALS,
    "lines": st.none() | PATTERNS,
    "uart": st.none() | PATTERNS,
    "hcp": st.fixed_dictionaries(
        {},
        optional={
            "capabilities": PATTERNS,
            "callers": PATTERNS,
            "max_risk": st.sampled_from(RISKS),
            "max_data_classification": st.sampled_from(CLASSIFICATIONS),
        },
    ),
}
ENTRIES = st.builds(
    lambda match, rest: {"match": match, **rest},
    st.lists(MATCHES, min_size=1, max_size=2),
    st.fixed_dictionaries({}, optional=dict(KEYS)),
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[list[PolicyEntry], list[PolicyEntry]]:
    """Return a policy, and what an edit has made of it: entries dropped, moved and added, keys dropped and replaced."""
    raw = {name: draw(ENTRIES) for name in "pqr"[: draw(st.integers(0, 3))]}
    edited = {name: dict(table) for name, table in raw.items()}
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from("pqrs"))
        if name not in edited or draw(st.booleans()):
            edited[name] = draw(ENTRIES)
        elif draw(st.booleans()):
            del edited[name]
        else:
            key = draw(st.sampled_from(["match", *KEYS]))
            edited[name][key] = draw(st.lists(MATCHES, min_size=1, max_size=2) if key == "match" else KEYS[key])
    names = draw(st.permutations(sorted(edited)))
    return [PolicyEntry(name=name, **raw[name]) for name in raw], [PolicyEntry(name=n, **edited[n]) for n in names]


def principals() -> Iterator[Principal]:
    groups = [frozenset(), frozenset((1, 2))]
    for uid, gid, more, names, user in product(range(3), range(3), groups, ("", "g", "gh"), ("u", "v", None)):
        yield Principal("unix", uid=uid, gid=gid, groups=more, group_names=frozenset(names), user=user)
    for subject, sans in product(("CN=a", "CN=b", None), ((), ("DNS:a",), ("DNS:a", "DNS:b"))):
        if subject or sans:
            yield Principal("tls", cert_subject=subject, cert_sans=frozenset(sans))
    yield from (Principal("token", token_sha256=digest) for digest in (*DIGESTS, "3" * 64))
    yield from (Principal("amqp", amqp_user=user) for user in "abc")


WHO = list(principals())
USES = [Use(field.name, (name,)) for field in fields(Scope) for name in ("a", "b", "ab", "bb", "pump", "1:0x48")]


def abilities(grant: Grant | None) -> set[Any]:
    """Everything that a grant allows, thing by thing: an independent account of it."""
    if grant is None:
        return set()
    able: set[Any] = {"a session", *grant.rights}
    for name in grant.allowed:
        rate = grant.rates[name]
        within = {(name, uses, time) for time in (0, 1, 60, 3600) for uses in range(1, 101)}
        able |= {one for one in within if one[1] <= rate.count + one[2] * rate.count / rate.period_s}
    able |= {("risk", risk) for risk in range(4) if risk <= grant.max_risk}
    able |= {("risk, raised", risk) for risk in range(4) if risk <= grant.max_risk_ceiling}
    approvals = [(right, persons, author) for right in RIGHTS for persons in range(3) for author in (True, False)]
    for state, risk in product((grant, grant.for_conversation("x")), (1, 2, 3)):
        rule = state.approval_for(risk)
        for right, persons, author in approvals:
            # So many persons with this right have approved, one of them its author or not.
            by = [f"p{number}" for number in range(persons)]
            enough = rule is None or (rule.right == right and not rule.missing(by, "p0" if author else ""))
            able |= {(state.conversation, risk, right, persons, author)} if enough else set()
    able |= {("uses", use.kind, use.names) for use in USES if grant.scope.permits(use)}
    able |= set() if grant.scope.bounded else {"what does not say what it uses"}
    return able | jobs(grant.hcp)


def jobs(rules: JobRules) -> set[Any]:
    able = {("capability", name) for name in ("a", "b", "ab", "bb") if rules.allows(name)}
    able |= {("caller", name) for name in ("a", "b", "ab", "bb") if rules.allows_caller(name)}
    able |= {("job", risk) for risk in RISKS[: RISKS.index(rules.max_risk) + 1]}
    last = CLASSIFICATIONS.index(rules.max_data_classification)
    return able | {("data", one) for one in CLASSIFICATIONS[: last + 1]}


def widened(former: Sequence[PolicyEntry], new: Sequence[PolicyEntry], who: Sequence[Principal]) -> bool:
    """Return True if one of them may do more."""
    pairs = {(grant_for(former, one), grant_for(new, one)): one for one in who}
    return any(abilities(decide(new, one, TOOLS)) - abilities(decide(former, one, TOOLS)) for one in pairs.values())


def grant_for(entries: Sequence[PolicyEntry], who: Principal) -> int | None:
    return next((n for n, one in enumerate(entries) if any(match.holds(who) for match in one.match)), None)


@given(policies())
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_no_principal_may_do_more_without_being_told(pair) -> None:
    former, new = pair
    change = changed(former, new)
    if widened(former, new, WHO):
        assert change.allows
    if new == former:
        assert change == PolicyChange((), ())
    if not change.removed:
        kept = {entry.name for entry in new}
        assert all(entry.name in kept for entry in former)


# --- a file that is cut short -----------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", *sorted((ROOT / "examples").rglob("*.md"))]


def examples() -> Iterator[tuple[str, str]]:
    """Each TOML file with a policy that is shipped or shown, with its place."""
    for path in sorted([*ROOT.glob("examples/**/*.toml"), *ROOT.glob("packaging/*.toml")]):
        text = re.sub(r"(?m)^#(?=\S)", "", path.read_text("utf-8"))
        yield str(path.relative_to(ROOT)), text
    for page in PAGES:
        for number, block in enumerate(re.findall(r"(?ms)^```toml\n(.*?)^```", page.read_text("utf-8"))):
            yield f"{page.relative_to(ROOT)}:{number}", block


def read(text: str) -> list[PolicyEntry]:
    config = read_config(parse_toml(text.encode(), "x"), "x")
    return build.policy_entries(config) or list(default_policy(1000, 5))


def whole() -> dict[str, tuple[str, list[PolicyEntry]]]:
    found: dict[str, tuple[str, list[PolicyEntry]]] = {}
    for place, text in examples():
        if "[[policy]]" in text:
            try:
                found[place] = text, read(text)
            except ConfigError:
                continue  # a piece of a file
    return found


def cuts(text: str, step: str) -> Iterator[str]:
    ends = range(len(text)) if step == "byte" else [found.end() for found in re.finditer(r"\n|,|\}", text)]
    return (text[:end] for end in ends)


def someone(entry: PolicyEntry) -> Iterator[Principal]:
    """A principal for each condition of an entry."""
    for match in entry.match:
        if match.token_sha256 is not None:
            yield Principal("token", token_sha256=match.token_sha256)
        elif match.amqp_user is not None:
            yield Principal("amqp", amqp_user=match.amqp_user)
        elif match.cert_subject is not None or match.cert_san is not None:
            sans = frozenset() if match.cert_san is None else frozenset((match.cert_san,))
            yield Principal("tls", cert_subject=match.cert_subject, cert_sans=sans)
        else:
            group = frozenset() if match.group is None else frozenset((match.group,))
            uid = 4000 if match.uid is None else match.uid
            yield Principal("unix", uid=uid, gid=match.gid, user=match.user, group_names=group)


@pytest.mark.parametrize("step", ["line", pytest.param("byte", marks=pytest.mark.proof)])
@pytest.mark.slow
def test_a_file_cut_short_is_broken_or_refused_or_allows_nobody_more(step, monkeypatch) -> None:
    monkeypatch.setattr(build, "_exists", lambda _key, _name: True)
    files = whole()
    assert len(files) >= 8
    counted = 0
    for place, (text, former) in files.items():
        before: list[PolicyEntry] | None = None
        for cut in cuts(text, step):
            try:
                new = read(cut)
            except ConfigError:
                continue
            if new == before:
                continue
            before, counted = new, counted + 1
            change = changed(former, new)
            who = [one for entry in (*former, *new) for one in someone(entry)]
            assert change.widens_silently or not widened(former, new, who), f"{place} cut to {cut[-60:]!r}"
    assert counted > 20
