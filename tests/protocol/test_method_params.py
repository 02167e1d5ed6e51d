"""The parameters of each method: what is taken, what is refused and where, what is ignored (draft §3, §8)."""

import attrs
import pytest

from hearth.errors import InvalidParams, UnsupportedVersion
from hearth.protocol import PROTOCOL_VERSION
from hearth.protocol.known import KNOWN, read_params
from hearth.protocol.methods import (
    METHODS,
    SUPPORTED,
    ApprovalGrant,
    ApprovalList,
    ApprovalRevoke,
    AttestKey,
    AttestQuote,
    EventsSubscribe,
    EventsUnsubscribe,
    HaltNow,
    HaltQuery,
    HaltReset,
    ObserveAudit,
    ObserveState,
    ObserveSubscribe,
    ObserveUnsubscribe,
    PlanApprove,
    PlanExecute,
    PlanGet,
    PlanList,
    PlanReject,
    PolicyReload,
    SessionClose,
    SessionOpen,
    TaskCancel,
    TaskGet,
    ToolList,
    read_session_id,
)
from hearth.protocol.params import MAX_SAFE
from hearth.protocol.submissions import PRIORITIES, Constraints, TaskSubmit

ABSENT = object()
NOT_TEXT = [1, 1.5, True, False, [], ["x"], {}, {"x": 1}]
NOT_BOOLEAN = [0, 1, 1.0, "true", "", [], {}]
NOT_INTEGER = [1.5, 2.0**1000, True, False, "1", [], [1], {}]


def read(method, params):
    return METHODS[method](params)


def refusal(method, params):
    with pytest.raises(InvalidParams) as caught:
        read(method, params)
    assert caught.value.code == -32602
    return caught.value


def fields(value):
    return {name: getattr(value, name) for name in attrs.fields_dict(type(value))}


def task(**members):
    return {
        "task": {
            "intent": "blink",
            "steps": [{"tool": "gpio.set", "args": {"line": 17, "value": 1}}],
            **members,
        }
    }


def constrained(**constraints):
    return task(constraints=constraints)


@pytest.mark.parametrize(
    "method", ["session.open", "session.close", "tool.list", "task.submit", "task.get", "task.cancel"]
)
@pytest.mark.spec(
    "3",
    "MUST",
    "The following methods make up the HACP Core and MUST be implemented by every conformant server.",
)
def test_the_core_methods_are_known(method):
    assert method in METHODS


def test_beside_the_core_only_event_subscription_plans_mcp_introspection_and_the_halt_are_known():
    assert {method for method in METHODS if not method.startswith("hcp.")} - {
        "session.open", "session.close", "tool.list", "task.submit", "task.get", "task.cancel",
    } == {
        "task.events.subscribe", "task.events.unsubscribe", "mcp.info", "mcp.tools", "mcp.use",
        "halt", "halt.status", "halt.reset",
        "policy.reload", "observe.state", "observe.subscribe", "observe.unsubscribe", "observe.audit",
        "plan.prepare", "plan.execute", "plan.list", "plan.get", "plan.approve", "plan.reject",
        "approval.grant", "approval.list", "approval.revoke",
        "attest.quote", "attest.key",
    }  # fmt: skip


GRANT = {"tool": "t", "args": {"a": {"equals": None}}, "times": 5, "within_s": 60}
GOOD = [
    ("session.open", {}, SessionOpen()),
    (
        "session.open",
        {"client_name": "ai-shell", "client_version": "1.2.3", "protocol_version": "0.1.0"},
        SessionOpen("ai-shell", "1.2.3", "0.1.0"),
    ),
    (
        "session.open",
        {"on_disconnect": "close", "heartbeat_ms": 50},
        SessionOpen(on_disconnect="close", heartbeat_ms=50),
    ),
    ("session.open", {"heartbeat_ms": 86_400_000}, SessionOpen(heartbeat_ms=86_400_000)),
    ("session.open", {"client_name": ""}, SessionOpen(client_name="")),
    ("session.open", {"client_version": "not semantic"}, SessionOpen(client_version="not semantic")),
    ("session.close", {}, SessionClose()),
    ("tool.list", {}, ToolList()),
    ("task.get", {"task_id": "t"}, TaskGet("t")),
    ("task.cancel", {"task_id": "t"}, TaskCancel("t")),
    ("task.events.subscribe", {}, EventsSubscribe(None)),
    ("task.events.subscribe", {"task_id": "t"}, EventsSubscribe("t")),
    ("task.events.subscribe", {"task_id": "t", "from_seq": 0}, EventsSubscribe("t", 0)),
    ("task.events.subscribe", {"task_id": "t", "from_seq": 2.0}, EventsSubscribe("t", 2)),
    ("task.events.subscribe", {"task_id": "t", "from_seq": MAX_SAFE}, EventsSubscribe("t", MAX_SAFE)),
    ("task.events.unsubscribe", {}, EventsUnsubscribe(None)),
    ("task.events.unsubscribe", {"task_id": "t"}, EventsUnsubscribe("t")),
    ("halt", {}, HaltNow()),
    ("halt", {"reason": "smoke"}, HaltNow("smoke")),
    # No stop is refused for its words.
    ("halt", {"reason": "x" * 300}, HaltNow("x" * 300)),
    *[("halt", {"reason": value}, HaltNow()) for value in NOT_TEXT],
    ("halt.status", {}, HaltQuery()),
    ("policy.reload", {}, PolicyReload()),
    ("policy.reload", {"yes": True}, PolicyReload(yes=True)),
    ("observe.state", {}, ObserveState()),
    ("observe.subscribe", {}, ObserveSubscribe()),
    ("observe.subscribe", {"stream": "s", "from_seq": 4}, ObserveSubscribe("s", 4)),
    ("observe.unsubscribe", {}, ObserveUnsubscribe()),
    ("observe.audit", {}, ObserveAudit()),
    ("observe.audit", {"from_seq": 7, "limit": 500}, ObserveAudit(7, 500)),
    ("attest.quote", {"nonce": "0f" * 16}, AttestQuote("0f" * 16)),
    ("attest.quote", {"nonce": "0f" * 64, "since": 0}, AttestQuote("0f" * 64, 0)),
    ("attest.key", {}, AttestKey()),
    ("halt.reset", {}, HaltReset()),
    ("plan.execute", {"plan_id": "p"}, PlanExecute("p")),
    ("plan.execute", {"plan_id": "p", "hash": "h", "wait_ms": 9, "subscribe": True}, PlanExecute("p", "h", 9, True)),
    ("plan.list", {}, PlanList()),
    ("plan.list", {"after_seq": 0, "wait_ms": 1}, PlanList(0, 1)),
    ("plan.get", {"plan_id": "p"}, PlanGet("p")),
    ("plan.approve", {"plan_id": "p", "hash": "h"}, PlanApprove("p", "h")),
    ("plan.reject", {"plan_id": "p", "reason": "no"}, PlanReject("p", "no")),
    ("approval.grant", GRANT, ApprovalGrant("t", {"a": {"equals": None}}, 5, 60)),
    (
        "approval.grant",
        {**GRANT, "args": {}, "principal": "p", "reason": "r", "dry_run": True},
        ApprovalGrant("t", {}, 5, 60, "p", "r", True),
    ),
    ("approval.list", {}, ApprovalList()),
    ("approval.revoke", {"approval_id": "a"}, ApprovalRevoke("a")),
]


@pytest.mark.parametrize(("method", "params", "value"), GOOD)
def test_good_params_are_read(method, params, value):
    got = read(method, params)
    assert type(got) is type(value)
    assert fields(got) == fields(value)


@pytest.mark.parametrize(("method", "params", "value"), GOOD)
@pytest.mark.spec("2.5", "MUST", "Servers MUST ignore unknown fields in params.")
def test_unknown_members_of_params_are_ignored(method, params, value):
    got = read(method, {**params, "session_id": "s", "x-new": {"deep": [1]}, "": None, "protocol": 7})
    assert fields(got) == fields(value)


@pytest.mark.spec("8", "MAY", "If present, clients MAY call:")
def test_the_drafts_subscription_is_read():
    got = read("task.events.subscribe", {"session_id": "...", "task_id": "..."})
    assert fields(got) == {"task_id": "...", "from_seq": None}


# The member of each method that may be left out, and a value it may have.
OPTIONAL = [
    ("session.open", "client_name", "a"), ("session.open", "client_version", "1.0.0"),
    ("session.open", "protocol_version", "0.1.0"), ("session.open", "on_disconnect", "close"),
    ("session.open", "heartbeat_ms", 1000), ("task.events.subscribe", "task_id", "t"),
    ("task.events.unsubscribe", "task_id", "t"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "name", "value"), OPTIONAL)
def test_an_optional_member_that_is_null_counts_as_left_out(method, name, value):
    assert fields(read(method, {name: None})) == fields(read(method, {}))
    assert fields(read(method, {name: value})) != fields(read(method, {}))


WRONG = [
    *[("session.open", {"client_name": value}, "/client_name") for value in NOT_TEXT],
    *[("session.open", {"client_version": value}, "/client_version") for value in NOT_TEXT],
    *[("session.open", {"protocol_version": value}, "/protocol_version") for value in NOT_TEXT],
    *[("session.open", {"on_disconnect": value}, "/on_disconnect") for value in [*NOT_TEXT, "", "Keep", "drop"]],
    *[
        ("session.open", {"heartbeat_ms": value}, "/heartbeat_ms")
        for value in [*NOT_INTEGER, -1, 0, 49, 86_400_001, 2**63]
    ],
    ("session.open", {"client_name": "x" * 257}, "/client_name"),
    ("session.open", {"client_version": "x" * 257}, "/client_version"),
    ("session.open", {"protocol_version": "1" * 257}, "/protocol_version"),
    *[("task.get", {"task_id": value}, "/task_id") for value in [*NOT_TEXT, None]],
    *[("task.cancel", {"task_id": value}, "/task_id") for value in [*NOT_TEXT, None]],
    ("task.get", {}, "/task_id"),
    ("task.cancel", {}, "/task_id"),
    ("task.get", {"task_id": "x" * 4097}, "/task_id"),
    *[("task.events.subscribe", {"task_id": value}, "/task_id") for value in NOT_TEXT],
    *[("task.events.unsubscribe", {"task_id": value}, "/task_id") for value in NOT_TEXT],
    *[
        ("task.events.subscribe", {"task_id": "t", "from_seq": value}, "/from_seq")
        for value in [*NOT_INTEGER, -1, MAX_SAFE + 1]
    ],
    ("task.events.subscribe", {"from_seq": 5}, "/from_seq"),
    ("plan.prepare", task(idempotency_key="k"), "/task/idempotency_key"),
    ("plan.execute", {}, "/plan_id"),
    ("plan.approve", {"plan_id": "p"}, "/hash"),
    *[("plan.execute", {"plan_id": "p", "wait_ms": value}, "/wait_ms") for value in [*NOT_INTEGER, -1, 60_001]],
    *[("plan.list", {"after_seq": value}, "/after_seq") for value in [*NOT_INTEGER, -1]],
    *[("plan.get", {"plan_id": value}, "/plan_id") for value in [*NOT_TEXT, None]],
    *[("plan.reject", {"plan_id": value}, "/plan_id") for value in [*NOT_TEXT, None]],
    *[("approval.revoke", {"approval_id": value}, "/approval_id") for value in [*NOT_TEXT, None]],
    *[("approval.grant", {**GRANT, "times": value}, "/times") for value in [*NOT_INTEGER, None, 0, 1001]],
    *[("approval.grant", {**GRANT, "within_s": value}, "/within_s") for value in [*NOT_INTEGER, None, 0, 86_401]],
    *[("approval.grant", {**GRANT, "args": value}, "/args") for value in [None, [], "x"]],
    *[
        ("approval.grant", {**GRANT, "args": {"a": value}}, "/args/a")
        for value in [1, None, {}, {"equals": 1, "min": 0}, {"max": "9"}, {"min": True}, {"min": 2, "max": 1}, {"x": 1}]
    ],
    ("approval.grant", {**GRANT, "args": {"a": {"any": False}}}, "/args/a/any"),
]


@pytest.mark.parametrize(("method", "params", "place"), WRONG)
def test_wrong_params_are_refused_and_their_place_is_named(method, params, place):
    error = refusal(method, params)
    assert error.data["path"] == place
    assert error.data["reason"].startswith("expected ")
    assert place in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"session.open"}))
@pytest.mark.parametrize("value", [*NOT_TEXT, None, ABSENT, "x" * 4097])
def test_a_session_id_is_a_string(method, value):
    assert read_session_id({"session_id": "s", "more": method}) == "s"
    params = {} if value is ABSENT else {"session_id": value}
    with pytest.raises(InvalidParams) as caught:
        read_session_id(params)
    assert caught.value.data["path"] == "/session_id"


# --- versions -------------------------------------------------------------------------------------------------------


def test_there_is_one_version_and_it_is_the_one_advertised():
    assert SUPPORTED == PROTOCOL_VERSION


@pytest.mark.parametrize(
    "version",
    ["0.0.0", "0.1.0", "0.2.0", "0.99.123456789", "0.1.0-alpha", "0.1.0-alpha.1", "0.1.0-0.x-y.7", "0.1.0+build.007",
     "0.1.0-rc.1+sha.5114f85", "0.0.0--"],
)  # fmt: skip
def test_any_version_of_our_major_is_spoken_to(version):
    assert read("session.open", {"protocol_version": version}).protocol_version == version


@pytest.mark.parametrize("version", ["1.0.0", "1.0.0-alpha", "2.0.0+x", "10.1.0", "9" * 200 + ".0.0"])
def test_a_higher_major_is_told_what_is_supported(version):
    with pytest.raises(UnsupportedVersion) as caught:
        read("session.open", {"protocol_version": version})
    assert caught.value.code == -32008
    assert caught.value.data == {"supported": ["0.1.0"]}


@pytest.mark.parametrize(
    "version",
    [
        "",
        "0",
        "0.1",
        "0.1.0.0",
        "v0.1.0",
        "00.1.0",
        "0.01.0",
        "0.1.00",
        "-0.1.0",
        "0.1.0-",
        "0.1.0+",
        "0.1.0-01",
        "0.1.0-a..b",
        "0.1.0 ",
        " 0.1.0",
        "0.1.0\n",
        "0.1.x",
        "0,1,0",
        "1e3.0.0",
        "٠.١.٠",
        "0.1٠.0",
        "1٠.0.0",
        "0.1.0-é",
        "9" * 200,
    ],
)
def test_what_is_no_semantic_version_is_invalid_params(version):
    assert refusal("session.open", {"protocol_version": version}).data["path"] == "/protocol_version"


# --- task.submit ----------------------------------------------------------------------------------------------------


def test_the_drafts_submission_is_read():
    got = read(
        "task.submit",
        {
            "session_id": "...",
            "task": {
                "intent": "Read sensor and toggle status LED",
                "steps": [
                    {"tool": "i2c.read", "args": {"bus": 1, "addr": "0x48", "reg": "0x00", "len": 2}},
                    {"tool": "gpio.set", "args": {"line": 17, "value": 1}},
                ],
                "constraints": {"max_duration_ms": 5000, "abort_on_step_failure": True, "max_risk_level": 2},
            },
        },
    )
    assert isinstance(got, TaskSubmit)
    assert got.intent == "Read sensor and toggle status LED"
    assert [(step.tool, step.args) for step in got.steps] == [
        ("i2c.read", {"bus": 1, "addr": "0x48", "reg": "0x00", "len": 2}),
        ("gpio.set", {"line": 17, "value": 1}),
    ]
    assert fields(got.constraints) == fields(Constraints(max_duration_ms=5000, max_risk_level=2))
    assert got.idempotency_key is None
    assert got.subscribe is False


def test_without_constraints_the_drafts_defaults_hold():
    for submission in (task(), task(constraints=None), task(constraints={})):
        got = read("task.submit", submission).constraints
        assert got.abort_on_step_failure is True
        assert got.max_duration_ms is None
        assert got.max_risk_level is None
        assert (got.rollback_on_failure, got.exclusive, got.dry_run) == (False, False, False)
        assert (got.on_busy, got.priority) == ("wait", "normal")


def test_every_constraint_is_read():
    constraints = {
        "max_duration_ms": 1.5,
        "abort_on_step_failure": False,
        "max_risk_level": 0,
        "rollback_on_failure": True,
        "exclusive": True,
        "on_busy": "fail",
        "dry_run": True,
        "priority": "urgent",
    }
    assert fields(read("task.submit", constrained(**constraints)).constraints) == constraints
    assert set(constraints) == set(attrs.fields_dict(Constraints))


@pytest.mark.parametrize("priority", PRIORITIES)
def test_every_priority_is_taken(priority):
    assert read("task.submit", constrained(priority=priority)).constraints.priority == priority


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_risk_level_is_taken(level):
    assert read("task.submit", constrained(max_risk_level=level)).constraints.max_risk_level == level


@pytest.mark.parametrize("duration", [1, 0.001, 5000.0, MAX_SAFE])
def test_a_duration_is_any_number_above_zero(duration):
    assert read("task.submit", constrained(max_duration_ms=duration)).constraints.max_duration_ms == duration


@pytest.mark.spec("2.5", "MUST", "Servers MUST ignore unknown fields in params.")
def test_unknown_members_of_a_submission_are_ignored_at_every_level():
    got = read(
        "task.submit",
        {
            "x": 1,
            "task": {
                "x": 1,
                "intent": "i",
                "steps": [{"tool": "t", "x": 1, "args": {"unknown": {"kept": "for the tool"}}}],
                "constraints": {"x": 1},
            },
        },
    )
    assert got.steps[0].args == {"unknown": {"kept": "for the tool"}}
    assert fields(got.constraints) == fields(Constraints())


def test_a_step_without_args_has_empty_args_of_its_own():
    first = read("task.submit", task(steps=[{"tool": "a"}, {"tool": "b"}]))
    first.steps[0].args["leak"] = True
    assert first.steps[1].args == {}
    assert read("task.submit", task(steps=[{"tool": "a"}])).steps[0].args == {}


def test_extra_members_of_the_task_are_read():
    got = read("task.submit", {**task(idempotency_key="k" * 256), "subscribe": True})
    assert got.idempotency_key == "k" * 256
    assert got.subscribe is True
    assert read("task.submit", {**task(idempotency_key=None), "subscribe": None}).subscribe is False


def test_an_intent_may_be_empty_and_any_text():
    assert read("task.submit", task(intent="")).intent == ""
    assert read("task.submit", task(intent="línea\n\x00" + "x" * 4000)).intent.startswith("línea\n\x00")


STEP = "/task/steps/1"
WRONG_SUBMISSIONS = [
    ({}, "/task"),
    *[({"task": value}, "/task") for value in [None, 1, "x", True, [], [{}]]],
    *[(task(intent=value), "/task/intent") for value in [*NOT_TEXT, None, "x" * 4097]],
    ({"task": {"steps": [{"tool": "a"}]}}, "/task/intent"),
    ({"task": {"intent": "i"}}, "/task/steps"),
    *[(task(steps=value), "/task/steps") for value in [None, 1, "x", {}, {"0": {}}, []]],
    *[(task(steps=[{"tool": "a"}, value]), STEP) for value in [None, 1, "x", True, []]],
    *[(task(steps=[{"tool": "a"}, {"tool": value}]), f"{STEP}/tool") for value in [*NOT_TEXT, None]],
    (task(steps=[{"tool": "a"}, {"args": {}}]), f"{STEP}/tool"),
    *[
        (task(steps=[{"tool": "a"}, {"tool": "a", "args": value}]), f"{STEP}/args")
        for value in [None, 1, "x", True, [], [1]]
    ],
    *[(task(constraints=value), "/task/constraints") for value in [1, "x", True, []]],
    *[
        (constrained(max_duration_ms=value), "/task/constraints/max_duration_ms")
        for value in [0, -1, 0.0, -0.5, True, "5000", [], {}, MAX_SAFE + 1, 1e300]
    ],
    *[
        (constrained(max_risk_level=value), "/task/constraints/max_risk_level")
        for value in [*NOT_INTEGER, -1, 4, MAX_SAFE]
    ],
    *[
        (constrained(**{name: value}), f"/task/constraints/{name}")
        for name in ("abort_on_step_failure", "rollback_on_failure", "exclusive", "dry_run")
        for value in NOT_BOOLEAN
    ],
    *[(constrained(on_busy=value), "/task/constraints/on_busy") for value in [*NOT_TEXT, "", "Wait", "queue"]],
    *[(constrained(priority=value), "/task/constraints/priority") for value in [*NOT_TEXT, "", "HIGH", "3"]],
    *[(task(idempotency_key=value), "/task/idempotency_key") for value in [*NOT_TEXT, "", "k" * 257]],
    *[({**task(), "subscribe": value}, "/subscribe") for value in NOT_BOOLEAN],
]


@pytest.mark.parametrize(("params", "place"), WRONG_SUBMISSIONS)
def test_a_wrong_submission_is_refused_and_its_place_is_named(params, place):
    error = refusal("task.submit", params)
    assert error.data["path"] == place
    assert error.data["reason"].startswith("expected ")


@pytest.mark.parametrize(
    "name",
    [
        "max_duration_ms",
        "abort_on_step_failure",
        "max_risk_level",
        "rollback_on_failure",
        "exclusive",
        "on_busy",
        "dry_run",
        "priority",
    ],
)
def test_a_constraint_that_is_null_counts_as_left_out(name):
    assert fields(read("task.submit", constrained(**{name: None})).constraints) == fields(Constraints())


def test_a_refusal_says_what_was_expected_and_what_came():
    error = refusal("task.submit", task(intent=7))
    assert error.message == "Invalid params: /task/intent: expected a string, got an integer"
    assert error.data == {"path": "/task/intent", "reason": "expected a string, got an integer"}


def test_a_refusal_does_not_repeat_what_was_sent():
    error = refusal("task.submit", task(idempotency_key="secret" * 100))
    assert "secret" not in error.message
    assert "secret" not in str(error.data)


def test_values_are_frozen():
    got = read("task.submit", task())
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        got.intent = "other"


class Recording(dict):
    """Params that tell which of their members were asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)


LEAST = {
    "attest.quote": {"nonce": "0f" * 16},
    "task.submit": task(),
    "task.get": {"task_id": "t"},
    "task.cancel": {"task_id": "t"},
    "mcp.use": {"tool": "t"},
    "plan.prepare": task(),
    "plan.execute": {"plan_id": "p"},
    "plan.approve": {"plan_id": "p", "hash": "h"},
    "plan.get": {"plan_id": "p"},
    "plan.reject": {"plan_id": "p"},
    "approval.grant": GRANT,
    "approval.revoke": {"approval_id": "a"},
    "hcp.attach": {"session_id": "s"},
    "hcp.artifact": {"uri": "u"},
    "hcp.decide": {"approval_id": "a"},
    "hcp.withdraw": {"message_id": "m"},
}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_read_of_params_is_known_and_all_else_is_named(method):
    params = Recording(LEAST.get(method, {}))
    read(method, params)
    known = params.asked | {"session_id", "strict"}
    allowed = {**dict.fromkeys(known), **LEAST.get(method, {})}
    assert read_params(method, allowed)[1] == ()
    assert set(KNOWN) == set(METHODS)
    more, named = {**allowed, **{f"{name}s": 1 for name in known}}, tuple([f"/{name}s" for name in known])
    if method == "plan.prepare":  # what a person approves has no word that does nothing
        with pytest.raises(InvalidParams) as refused:
            read_params(method, more)
        assert tuple(refused.value.data["unknown"]) == named
    else:
        assert read_params(method, more)[1] == named
    with pytest.raises(InvalidParams):
        read_params(method, {**allowed, "x": 1, "strict": True})


def test_every_constraint_and_no_other_is_known():
    for name in attrs.fields_dict(Constraints):
        assert read_params("task.submit", constrained(**{name: None}))[1] == ()
        assert read_params("task.submit", constrained(**{f"{name}s": None}))[1] == (f"/task/constraints/{name}s",)
