"""`job.plan`: a model proposes within the capability's tools and the job's risk; from risk 2 on a person decides."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from support.model_server import Cut, proposes, reads, says

import hearth
from hearth.actors.embedded import EmbeddedRuntime
from hearth.config.ask import AskConfig
from hearth.config.hcp import HcpConfig
from hearth.config.model import AuditConfig, Config
from hearth.policy.principal import from_token

pytest.importorskip("isodate", reason="jobs take the extra: pip install 'hearthd[hcp]'")

pytestmark = pytest.mark.slow

LIGHT = ("gpio.set", {"line": "LED", "value": 1})
RELAY = ("gpio.set", {"line": "RELAY", "value": 1})
SCAN = ("i2c.scan", {"bus": 1})
CAPABILITY = """
from hearth import Job, StepFailed, capability


@capability(
    "in-words",
    version="1.0.0",
    tools=["gpio.get", "gpio.set", "i2c.scan", "hw.sensor.read"],
    risk_ceiling="R3",
    risk_floor="R3",
    max_duration="PT1M",
    clean_up=["gpio.set"],
    output_schema={"type": "object", "properties": {"done": {"type": "string"}}, "required": ["done"]},
)
async def in_words(job: Job, *, words: str) -> dict:
    \"\"\"Do what a model proposes.\"\"\"
    try:
        steps = await job.plan(words)
    except StepFailed as failed:
        return {"done": str(failed)}
    results = [await job.run(one.tool, **one.args) for one in steps]
    return {"done": f"{len(results)} steps"}
"""


@asynccontextmanager
async def offering(tmp_path, url):
    """An embedded runtime with the capability, and what another principal decides."""
    file = tmp_path / "in_words.py"
    file.write_text(CAPABILITY)
    config = Config(
        audit=AuditConfig(path=tmp_path / "audit.log", reserve_bytes=0),
        hcp=HcpConfig(serve=True, capabilities=(str(file),)),
        ask=AskConfig() if url is None else AskConfig(base_url=url, model="small", timeout_s=20.0),
    )
    with trio.fail_after(60):
        async with hearth.open_runtime(config=config) as runtime:
            yield runtime


async def run(runtime, words, *, yes=None):
    """Submit a job; a person answers with `yes` what it asks. Return its end and the questions."""
    principal, asked = from_token("another person"), []
    async with trio.open_nursery() as nursery:
        person = EmbeddedRuntime(runtime._runtime, principal, nursery)
        job = await runtime.delegate("in-words", "a test", {"words": words})

        async def decide():
            approvals = runtime._runtime.approvals
            while True:
                for one in await person.pending_approvals():
                    asked.append("\n".join(one["shown"]))
                    await person.decide(one["approval_id"], approve=yes)
                await approvals.changed()

        nursery.start_soon(decide)
        ended = await job.wait()
        nursery.cancel_scope.cancel()
    return ended, asked


async def test_steps_of_low_risk_are_returned_and_run(model, tmp_path):
    model.script[:] = [reads("hw.sensor.read", sensor="tank"), proposes("scan", SCAN)]
    async with offering(tmp_path, model.openai) as runtime:
        ended, asked = await run(runtime, "which chips are there?")
    assert (ended.state, ended.outputs) == ("COMPLETED", {"done": "1 steps"})
    assert asked == []
    # Only the tools that the capability declares are named to the model.
    prompt = model.requests[0][2]["messages"][0]["content"]
    assert "i2c.scan(" in prompt
    assert "gpio.pulse(" not in prompt


@pytest.mark.parametrize("yes", [True, False])
async def test_from_risk_2_on_a_person_is_asked_with_the_steps(model, tmp_path, yes):
    model.script[:] = [proposes("light", LIGHT)]
    async with offering(tmp_path, model.openai) as runtime:
        ended, asked = await run(runtime, "light the LED", yes=yes)
        starts = [line for line in runtime.audit_path.read_text().splitlines() if '"task.step.start"' in line]
    (question,) = asked
    assert 'steps [{tool="gpio.set" args={line="LED" value=1}}]' in question
    assert "A model proposes steps for 'light the LED'. May the job run them?" in question
    assert any('"gpio.set"' in line for line in starts) == yes
    assert ended.state == ("COMPLETED" if yes else "FAILED")
    assert yes or "a person has not approved what a model proposed" in ended.error_message


async def test_a_tool_that_is_not_declared_is_refused_and_told_to_the_model(model, tmp_path):
    model.script[:] = [
        proposes("pulse", ("gpio.pulse", {"line": "LED", "value": 1, "duration_ms": 5})),
        says("I cannot."),
    ]
    async with offering(tmp_path, model.openai) as runtime:
        ended, _ = await run(runtime, "blink")
    assert ended.outputs == {"done": "0 steps"}
    assert "not in the allowlist" in str(model.requests[-1][2]["messages"])


async def test_reads_are_held_to_risk_0(model, tmp_path):
    model.script[:] = [reads(RELAY[0], **RELAY[1]), says("I cannot.")]
    async with offering(tmp_path, model.openai) as runtime:
        ended, _ = await run(runtime, "close the relay")
    assert ended.outputs == {"done": "0 steps"}
    assert "a conversation only reads" in str(model.requests[-1][2]["messages"])


async def test_a_model_that_fails_fails_the_operation(model, tmp_path):
    model.script[:] = [Cut()]
    async with offering(tmp_path, model.openai) as runtime:
        ended, _ = await run(runtime, "light the LED")
    assert "job.plan failed: the model's answer stopped in the middle" in ended.outputs["done"]


async def test_without_a_model_the_cure_is_named(tmp_path):
    async with offering(tmp_path, None) as runtime:
        ended, _ = await run(runtime, "light the LED")
    assert "job.plan failed: no model is configured" in ended.outputs["done"]


@pytest.mark.slow
def test_a_confined_daemon_reaches_its_model_and_no_other_port(own_daemon, cli, model, tmp_path):
    model.script[:] = [proposes("scan", SCAN)]
    file = tmp_path / "in_words.py"
    file.write_text(CAPABILITY)
    asked = f'[ask]\nbase_url = "{model.openai}"\nmodel = "small"\n'
    daemon = own_daemon(f'[hcp]\nserve = true\ncapabilities = ["{file}"]\n{asked}')
    job = {"capability": "in-words", "caller_id": "me", "intent": "look", "inputs": {"words": "look"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    answer = cli("--socket", daemon.socket, "--json", "hcp", "submit", tmp_path / "job.json")
    assert answer.code == 0, answer
    assert "1 steps" in answer.out
    assert len(model.requests) == 1
