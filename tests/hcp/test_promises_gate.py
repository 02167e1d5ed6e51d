"""What HCP's pages promise of the gate and of what comes of a task (L3, L4), kept by the job server."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve
from support.hcp import capability, failing, gated, hcp_world, open_policy, reading, scripted, step
from support.world import ALICE, BOB, NOON, BenchWorld

from hearth import Escalation, Limit, capability as declare_capability
from hearth.hcp.capability import MARK
from hearth.hcp.codec import read_declaration
from hearth.hcp.declaration import declare
from hearth.hcp.messages import NEEDED_RISK_LEVEL
from hearth.hcp.token import verify
from hearth.policy.rules import JobRules, Match, PolicyEntry
from hearth.tools import Tool

if TYPE_CHECKING:
    from hearth import Job

pytestmark = pytest.mark.usefixtures("bounded")

ENVELOPES = "hcp L3 Safety Envelope"
TASK = "hcp L4 TaskSubmit Fields"
LIMITS = "hcp L4 Constraints"
RISK = "hcp L3 Risk Assessment Process"
CLASS = "hcp L3 Data Classification"
AUDIT = "hcp L3 Permission Audit"
TOKEN = "hcp L3 Session Token"
FLOW = "hcp L3 Approval Flow"
CODES = "hcp L4 Standard Error Codes"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "hcp"


# --- L3: the gate -----------------------------------------------------------------------------------------------------


@pytest.mark.spec(FLOW, "is", "Caller authenticated? No: TaskRejected (unauthorized)")
@pytest.mark.spec(
    AUDIT, "is", "Caller identity: The caller harness is authenticated via AMQP broker-level credentials (SASL)."
)
@pytest.mark.spec("hcp L1 Authentication", "is", "Application-level identity (caller_id) is validated by L3.")
async def test_who_is_not_known_or_not_who_it_may_be_is_unauthorized(place) -> None:
    only = PolicyEntry(name="alice", match=Match(uid=1001), max_risk=3, hcp=JobRules(callers=("harness-*",)))
    async with hcp_world(place, policy=(only,)) as world:
        other = world.caller(BOB)
        assert (await other.rejected(other.submission()))["reason_code"] == "unauthorized"
        caller = world.caller()
        assert (await caller.rejected(caller.submission(caller_id="someone-else")))["reason_code"] == "unauthorized"
        await caller.accepted()


@pytest.mark.spec(FLOW, "is", "Capability access OK? No: TaskRejected (forbidden)")
@pytest.mark.spec(AUDIT, "is", "Capability access: The caller has permission to invoke the requested capability.")
@pytest.mark.spec(FLOW, "is", "Input schema valid? No: TaskRejected (invalid_input)")
@pytest.mark.spec(AUDIT, "is", "Input validation: The task inputs conform to the capability's input_schema.")
@pytest.mark.spec(FLOW, "is", "Check caller's allowed risk threshold. Exceeds: TaskRejected (risk_too_high)")
@pytest.mark.spec(
    AUDIT,
    "is",
    "Safety compliance: The task parameters fall within acceptable risk thresholds for the caller's permission level.",
)
@pytest.mark.spec("hcp L3 Purpose")
@pytest.mark.spec("hcp L3 TaskRejected Response")
async def test_no_task_passes_the_gate_that_the_page_would_not_let_pass(place) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    rules = open_policy(capabilities=("look", "risky"), max_risk="R3")
    offered = (
        capability(input_schema=schema),
        capability("hidden"),
        capability("risky", safety={"risk_ceiling": "R4", "risk_floor": "R4"}),
    )
    async with hcp_world(place, *offered, policy=rules) as world:
        caller = world.caller()
        for name, inputs, code in (
            ("hidden", {}, "forbidden"),
            ("look", {"n": "5"}, "invalid_input"),
            ("risky", {}, "risk_too_high"),
        ):
            refusal = await caller.rejected(caller.submission(name, inputs=inputs))
            assert refusal["reason_code"] == code
            assert refusal["reason_message"]
            assert refusal["suggestion"]
        assert refusal["assessed_risk_level"] == "R4"
        assert world.records("hcp.accept", "session.open") == []
        assert len(world.records("hcp.reject")) == 3


@pytest.mark.spec(
    FLOW, "is", "requires_human_approval and risk_level >= R3? Yes: Queue for human review (async approval flow)"
)
@pytest.mark.spec(FLOW, "is", "No / Approved: Issue SessionToken, Return TaskAccepted")
async def test_a_person_is_asked_where_one_is_required_and_then_it_is_accepted(place) -> None:
    rules = tuple(evolve(entry, rights=["approve"]) for entry in open_policy())
    offered = capability(safety={"requires_human_approval": True})
    async with hcp_world(place, offered, policy=rules) as world:
        caller, person = world.caller(), world.caller(BOB)
        document = caller.submission()
        await caller.send(document)
        while not (waiting := (await person.call("hcp.pending"))["approvals"]):
            await trio.lowlevel.checkpoint()
        assert caller.replies(document["message_id"]) == []
        await person.call("hcp.decide", approval_id=waiting[0]["approval_id"], approve=True)
        answer = await caller.reply(document)
        assert answer["type"] == "task_accepted"
        assert answer["payload"]["session_token"]


@pytest.mark.spec(
    RISK, "is", "Static risk floor: The capability's declared risk_ceiling sets the minimum possible risk."
)
@pytest.mark.spec(
    RISK,
    "is",
    "The assessed risk level is included in the task_accepted response and carried in the session token.",
)
@pytest.mark.spec(TOKEN, "is", "Authorizes the execution session")
@pytest.mark.spec(TOKEN, "is", "Encodes the approved risk level and constraints")
@pytest.mark.spec(
    TOKEN, "is", "Is carried in all subsequent messages for the session (via session_token in L2 session metadata)"
)
@pytest.mark.spec("hcp L3 Token Format")
@pytest.mark.spec("hcp L3 TaskAccepted Response")
@pytest.mark.spec(
    CLASS,
    "is",
    "Data classification is declared by the caller in the task submission and validated by the callee's L3 layer.",
)
async def test_what_was_assessed_is_in_the_acceptance_and_in_its_token(place) -> None:
    async with hcp_world(place, gated(), policy=open_policy(max_data_classification="T2")) as world:
        caller = world.caller()
        refusal = await caller.rejected(caller.submission(constraints={"data_classification": "T4"}))
        assert refusal["reason_code"] == "classification_too_high"
        answer = await caller.reply(caller.submission(constraints={"data_classification": "T2"}))
        payload, session_id = answer["payload"], answer["session_id"]
        assert (payload["risk_level"], payload["data_classification"]) == ("R3", "T2")
        assert set(payload["constraints"]) == {"max_duration", "abort_timeout"}
        assert "safety_envelope" in payload
        job_store = world.job_server.services.job_store
        claims = verify(job_store.key, payload["session_token"], NOON, session_id=session_id)
        assert claims.approved_risk_level == "R3"
        assert claims.approved_data_classification == "T2"
        assert timedelta(seconds=claims.expires_at - claims.issued_at) == timedelta(minutes=1)
        assert payload["constraints"]["max_duration"] == "PT1M"
        assert (await caller.told(session_id, "session_created"))["session_token"] == payload["session_token"]
        world.gate("g").open()
        await caller.closed(session_id)


@pytest.mark.spec(
    TOKEN,
    "is",
    "Is validated by the callee's L1/L2 layers on each operation to ensure execution stays within approved scope",
)
async def test_an_abort_under_a_token_that_does_not_hold_is_refused_and_the_job_goes_on(place) -> None:
    async with hcp_world(place, gated()) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        refusal = await caller.rejected(caller.abortion(session_id, session_token="a.b"))
        assert refusal["reason_code"] == "unauthorized"
        world.gate("g").open()
        assert (await caller.closed(session_id))[-1]["payload"]["data"]["final_state"] == "COMPLETED"


@declare_capability(
    "oven",
    version="1.2.0",
    tools=["bench.heat", "bench.set"],
    risk_ceiling="R5",
    risk_floor="R4",
    escalate=[Escalation(lambda target: target > 800, "R5", "it glows", "keep /payload/inputs/target at 800 or less")],
    limits={"temperature": Limit(lambda target: target, max=1000, unit="celsius")},
    prohibited_actions=["opening it while it glows"],
)
async def oven(job: Job, *, target: int, found: int) -> dict[str, int]:
    """Heats something, looks how hot it has got, and opens the door."""
    hottest = (await job.run("bench.heat", n=found))["count"]
    job.watch("temperature", hottest)
    await job.run("bench.set", line=1, value=1)
    return {"hottest": hottest}


async def heat(_ctx, args):
    """A thermometer that says what it was told to."""
    await trio.lowlevel.checkpoint()
    return {"count": args["n"]}


HEAT = Tool(
    name="bench.heat",
    risk_level=0,
    timeout_ms=1000,
    description="bench.heat",
    params_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    result_schema={"type": "object", "properties": {"count": {"type": "integer"}}},
    capability="CAP_GPIO_READ",
    bus=lambda _args: "a",
    run=heat,
)


def kitchen(place):
    """A world with a capability that has a safety envelope, as its author declares it."""
    registry = BenchWorld(extra_tools=[HEAT]).parts.registry
    found = declare(getattr(oven, MARK), registry)
    assert found.capability is not None, found.faults
    return hcp_world(place, found.capability, policy=open_policy(), extra_tools=[HEAT])


@pytest.mark.spec(RISK, "is", "Input-driven escalation: Specific input parameters may elevate the risk level.")
@pytest.mark.spec(ENVELOPES, "is", "Defined by the callee based on equipment specifications and safety policies")
@pytest.mark.spec(ENVELOPES, "is", "Not modifiable by the caller — the caller cannot relax safety limits")
async def test_inputs_raise_the_risk_and_no_caller_gets_past_the_envelope(place) -> None:
    relaxed = {"parameters": {"temperature": {"max": 5000, "unit": "celsius", "hard_limit": False}}}
    async with kitchen(place) as world:
        caller = world.caller()
        for target, risk in ((500, "R4"), (801, "R5")):
            answer = await caller.reply(caller.submission("oven", inputs={"target": target, "found": 1}))
            assert answer["payload"]["risk_level"] == risk
            parameters = answer["payload"]["safety_envelope"]["parameters"]
            assert parameters == {"temperature": {"max": 1000, "unit": "celsius", "hard_limit": True}}
            assert (await caller.outcome(answer["session_id"]))["outputs"] == {"hottest": 1}
        too_hot = {"target": 1001, "found": 1}
        document = caller.submission("oven", inputs=too_hot, constraints={"safety_envelope": relaxed})
        document["payload"]["safety_envelope"] = document["payload"]["context"] = relaxed
        refusal = await caller.rejected(document)
    assert refusal["reason_code"] == "safety_violation"
    assert "1000" in refusal["suggestion"]


@pytest.mark.spec(
    ENVELOPES,
    "is",
    "For capabilities involving physical resources (R4, R5), L3 defines a safety envelope — hard boundaries that "
    "execution must never exceed.",
)
@pytest.mark.spec(ENVELOPES, "is", "Enforced locally by the callee during L1 tool execution")
async def test_a_job_that_finds_itself_outside_of_its_envelope_does_nothing_further(place) -> None:
    async with kitchen(place) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted("oven", inputs={"target": 20, "found": 1001}))
        assert [one["tool"] for one in world.records("task.step.start")] == ["bench.heat"]
    assert failed["error_code"] == "safety_violation"
    assert "temperature" in failed["error_message"]
    assert failed["execution_summary"]["risk_events"] == ["safety_envelope.temperature"]


@pytest.mark.spec(
    TASK, "is", "capability | string | Yes | Name of the capability to invoke (matches callee's Capability Declaration)"
)
@pytest.mark.spec(
    TASK,
    "is",
    'capability_version | string | No | Semver range for acceptable capability versions (e.g., "1.x", ">=2.0.0")',
)
async def test_a_capability_is_found_by_its_name_and_by_a_range_that_has_its_version(place) -> None:
    async with kitchen(place) as world:
        caller = world.caller()
        for accepted in ("1.x", ">=1.1.0", "1.2.0", "^1"):
            inputs = {"target": 1, "found": 1}
            await caller.closed(await caller.accepted("oven", inputs=inputs, capability_version=accepted))
        refusal = await caller.rejected(caller.submission("oven", capability_version=">=2.0.0"))
        assert refusal["reason_code"] == "version_mismatch"
        assert "1.2.0" in refusal["reason_message"]
        refusal = await caller.rejected(caller.submission("ofen"))
        assert refusal["reason_code"] == "unknown_capability"
        assert "oven" in refusal["suggestion"]


@pytest.mark.spec(LIMITS, "is", "confidence_threshold | number (0–1) | Minimum acceptable confidence for results")
async def test_a_result_below_the_threshold_is_no_completion(place) -> None:
    function = scripted(step("read", tag="x"), outputs={"confidence": 0.9})
    schema = {"type": "object", "properties": {"confidence": {"type": "number"}}}
    async with hcp_world(place, capability(function=function, output_schema=schema)) as world:
        caller = world.caller()
        for threshold, end in ((0.9, "task_completed"), (0.95, "task_failed")):
            message_log = await caller.closed(await caller.accepted(constraints={"confidence_threshold": threshold}))
            assert [one["type"] for one in message_log if one["type"].startswith("task_")][1:] == [end]


@pytest.mark.spec("hcp L3 Capability Declaration")
async def test_capabilities_are_published_as_declarations_to_who_may_use_them(place) -> None:
    async with hcp_world(
        place, capability(), capability("hidden"), policy=open_policy(capabilities=("look",))
    ) as world:
        (declared,) = (await world.caller().call("hcp.capabilities"))["capabilities"]
    assert read_declaration(declared)["capability"]["name"] == "look"


@pytest.mark.spec("hcp L3 Risk Classification")
async def test_each_risk_level_needs_a_level_of_hacps_that_says_the_same_of_effects() -> None:
    # Draft §3.3: 0 reads, 1 changes what is easily changed back, 2 moves the world, 3 can do harm.
    assert NEEDED_RISK_LEVEL == {"R1": 0, "R2": 1, "R3": 2, "R4": 2, "R5": 3}


@pytest.mark.spec(CLASS, "is", "T1 | Public | Non-sensitive data | No restrictions")
@pytest.mark.spec(CLASS, "is", "T2 | Internal | Internal data, not for public release | Access logging")
@pytest.mark.spec(
    CLASS, "is", "T3 | Confidential | Sensitive data with restricted access | Encryption in transit and at rest"
)
@pytest.mark.spec(
    CLASS,
    "is",
    "T4 | Restricted | Highly sensitive, regulatory implications | Encryption, audit trail, access approval",
)
@pytest.mark.parametrize("level", ["T1", "T2", "T3", "T4"])
async def test_who_reads_an_artifact_is_logged_from_t2_on_and_is_the_submitter_alone_from_t3_on(place, level) -> None:
    async def logging(job):
        job.artifact("log.csv", b"a\n", media_type="text/csv")
        return {}

    offered = capability(function=logging, data_classification="T4")
    async with hcp_world(place, offered, policy=open_policy(max_data_classification="T4")) as world:
        caller, other = world.caller(), world.caller(BOB)
        completed = await caller.outcome(await caller.accepted(constraints={"data_classification": level}))
        uri = completed["artifacts"][0]["uri"]
        await caller.call("hcp.artifact", uri=uri)
        answer = await other.ask("hcp.artifact", {"uri": uri})
        logged = [one["principal"] for one in world.records("hcp.artifact.read")]
    assert ("result" in answer) == (level in ("T1", "T2"))
    assert logged == {"T1": [], "T2": [ALICE.key, BOB.key]}.get(level, [ALICE.key])


# --- L4: what comes of it ---------------------------------------------------------------------------------------------


@pytest.mark.spec(CODES, "is", "execution_error | Error during task execution")
@pytest.mark.spec(CODES, "is", "internal_error | Callee harness internal failure")
@pytest.mark.spec(CODES, "is", "input_error | Input data is malformed or insufficient (discovered during execution)")
@pytest.mark.spec(CODES, "is", "safety_violation | Execution would violate safety envelope")
@pytest.mark.spec(CODES, "is", "resource_unavailable | Required resource is not available")
@pytest.mark.parametrize("code", ["execution_error", "input_error", "safety_violation", "resource_unavailable"])
async def test_a_failure_bears_the_standard_code_of_its_cause(place, code) -> None:
    async def bug(_job):
        return {}["a bug in a capability"]

    async with hcp_world(place, capability(function=failing("no further", code)), capability("bug", bug)) as world:
        caller = world.caller()
        failed = await caller.outcome(await caller.accepted())
        crashed = await caller.outcome(await caller.accepted("bug"))
    assert (failed["error_code"], failed["error_message"]) == (code, "no further")
    assert failed["error_details"]["recoverable"] is False
    assert crashed["error_code"] == "internal_error"


@pytest.mark.spec("hcp L4 Expected Output")
async def test_a_result_that_is_not_what_was_expected_is_no_completion(place) -> None:
    expected = {"required_fields": ["tag"], "schema": {"type": "object", "properties": {"tag": {"const": "x"}}}}
    async with hcp_world(place, capability(), capability("other", reading(step("read", tag="y")))) as world:
        caller = world.caller()
        completed = await caller.outcome(await caller.accepted(expected_output=expected))
        assert completed["outputs"] == {"tag": "x"}
        failed = await caller.outcome(await caller.accepted("other", expected_output=expected))
        missing = await caller.outcome(await caller.accepted(expected_output={"required_fields": ["layer_count"]}))
    assert failed["error_code"] == missing["error_code"] == "execution_error"
    assert "layer_count" in missing["error_message"]
    assert failed["partial_outputs"] == {"tag": "y"}
