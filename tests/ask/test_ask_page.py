"""docs/howto/ask-in-words.md is played, with a model on loopback in the place of Ollama's."""

import pytest
from docs.player import ROOT, acts, blocks, matches, play
from support.model_server import ModelServer, calls, proposes, reads, says

pytest.importorskip("openai", reason="hearth ask takes the extra: pip install 'hearthd[ask]'")

PAGE = (ROOT / "docs/howto/ask-in-words.md").read_text("utf-8")
ACTS = list(acts(blocks(PAGE)))
FILL = ("gpio.pulse", {"line": "PUMP", "value": 1, "duration_ms": 1000})
LOOK = reads("hw.sensor.read", sensor="tank")
PLAN = {**proposes("fill the tank", FILL), "text": "The tank is at 40 percent."}
RELAY = ("gpio.set", {"line": "RELAY", "value": 1})


def note(body):
    words = next(one["content"] for one in body["messages"] if one["role"] == "user")
    path = words.removeprefix("what does ").removesuffix(" say?")
    return calls(("read", {"tool": "file.read", "args": {"path": path}}))


@pytest.fixture(scope="module")
def played(tmp_path_factory, unmeasured):
    script = [LOOK, PLAN, LOOK, PLAN, says("The pump ran for one second, and the tank is filling.")]
    with ModelServer(*script, note, proposes("as the note says", RELAY)) as server:
        page = [one._replace(shell=one.shell.replace(":11434", f":{server.port}")) for one in ACTS]
        before = 'export RUNTIME_DIRECTORY="$HOME" STATE_DIRECTORY="$HOME"\n'
        yield play(page, tmp_path_factory.mktemp("page"), before), server


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ACTS)), ids=[str(one.line) for one in ACTS])
def test_the_block_does_what_the_page_says(played, number):
    outcomes, server = played
    outcome, act = outcomes[number], ACTS[number]
    output = outcome.output.replace(f":{server.port}", ":11434")
    assert outcome.code == act.code, output
    assert act.expected is None or matches(act.expected, output), output
