"""`hearth halt` as a person types it: which words halt, what it shows, and what it says in the end."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def not_halted(local_cli):
    """The daemon is one for all tests here."""
    yield
    assert local_cli("halt", "reset").code == 0


@pytest.mark.parametrize("words", [
    ["status"], ["show"], ["state"], ["Status"], ["reset"], ["clear"], ["end"], ["off"], ["--status"], ["--reset"],
])  # fmt: skip
def test_a_single_word_that_names_a_command_halts_nothing(local_cli, daemon, words):
    before = len(daemon.records(event="halt"))
    told = local_cli("halt", *words)
    assert local_cli("halt", "status").code == 0
    assert len(daemon.records(event="halt")) == before
    if words[0] in ("clear", "end", "off"):
        assert (told.code, told.out) == (2, "")
        assert f"nothing was halted: {words[0]!r} alone is not a reason; `hearth halt reset` ends a halt" in told.err
    else:
        assert told.code == 0
        assert told.out.splitlines()[0].split() == ["halted", "no"]


@pytest.mark.parametrize("words", [
    [], ["smoke"], ["restart"], ["stauts"], ["reset valve leaks"], ["reset", "valve", "leaks"],
    ["status", "lamp"], ["off", "off"], [""],
])  # fmt: skip
def test_two_words_always_halt_and_so_does_one_that_names_no_command(local_cli, daemon, words):
    assert local_cli("halt", *words).code == 0
    assert daemon.records(event="halt")[-1]["reason"] == (" ".join(words) or "no reason was given")


def test_a_halt_says_which_outputs_are_safe_by_name_after_the_stop_sequence_and_what_to_do_next(local_cli, daemon):
    peer = daemon.peer()
    peer.run(peer.open(), "gpio.set", line=17, value=1)
    told = local_cli("halt", "smoke")
    *_, safe, after = told.out.splitlines()
    assert told.code == 0
    assert safe.startswith("every output that has a safe state is there: ")
    assert "LED (gpio:sim)" in safe, "what people call the line, as on the dashboard"
    assert after == "next: when the cause is gone, `hearth halt reset`; `hearth halt status` shows who holds the halt"
    assert "NOT SAFE" not in told.out
    assert local_cli("halt", "reset").code == 0, "it has waited for the end of the stop sequence"


def test_a_second_halt_is_shown_with_its_reason(local_cli, daemon):
    local_cli("halt", "smoke")
    assert "held by" not in local_cli("halt", "status").out
    local_cli("halt", "fire")
    shown = local_cli("halt", "status")
    assert shown.code == 1
    (held,) = [line for line in shown.out.splitlines() if line.startswith("held by ")]
    assert ": smoke, " in held
    assert "; 2 times, last: fire, " in held
    (hold,) = local_cli("halt", "status", "--json").json["holds"]
    assert (hold["reason"], hold["last_reason"], hold["count"]) == ("smoke", "fire", 2)


def test_a_user_whose_sessions_are_all_open_can_halt_and_see_the_halt(local_cli, daemon):
    peer = daemon.peer()
    opened = []
    while "result" in (answer := peer.call("session.open", {"client_name": "leak"})):
        opened.append(answer["result"]["session_id"])
    assert local_cli("tools").code == 1, "whoever needs a session is refused"
    assert local_cli("halt", "smoke").code == 0
    assert local_cli("halt", "status").code == 1
    assert daemon.records(event="halt")[-1]["reason"] == "smoke"
    for one in opened:
        peer.call("session.close", {"session_id": one})
