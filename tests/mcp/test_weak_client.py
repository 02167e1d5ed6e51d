"""A model that calls tools wrongly reaches its aim within two more turns, by what the answers say and nothing else.

`weak_client.json` has 30 calls with mistakes, as weak models make them. `Weak` makes the call, then follows the cure
that the answer names, mechanically. It never reads a schema or a list of tools.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
from support.mcp import mcp_client, text_of

import hearth
from hearth.actors.bridges.mcp.server import all_offers
from hearth.drivers.boards import load_profile, open_board

TASKS = json.loads(Path(__file__).with_name("weak_client.json").read_text())["tasks"]
TURNS = 2
"""Further calls that a task may take."""

_TRY = re.compile(r"^Try(?:, with (.*) added)?: (\S+) (\{.*\})$", re.MULTILINE)
_FAULT = re.compile(r"^- (\S+): (.*)$", re.MULTILINE)
_MEANT = re.compile(r"did you mean (\S+?)\?")
_EITHER = re.compile(r'did you mean (\S+) \(decimal.*\) or "(\S+)" \(hexadecimal')
_BOUND = re.compile(r"than the (?:minimum|maximum) of (\d+)")


class Weak:
    """A client that knows its own aim, and what an answer says."""

    def __init__(self, client, task):
        self._client = client
        self._knows = task.get("knows", {})
        self.calls = [(task["call"]["name"], task["call"]["arguments"])]

    async def work(self):
        """Return the first result that is none of an error, or the last one."""
        while True:
            result = await self._client.call_tool(*self.calls[-1])
            if not result.is_error or len(self.calls) > TURNS:
                return result
            following = self.cured(text_of(result))
            if following is None:
                return result
            self.calls.append(following)

    def cured(self, text):
        """The call that an error leads to; None if it names no cure."""
        suggested = _TRY.search(text)
        if suggested is not None:
            lacking, name, arguments = suggested.groups()
            added = {key: self._knows[key] for key in (lacking.split(" and ") if lacking else ()) if key in self._knows}
            arguments = json.loads(arguments)
            into = arguments["arguments"] if name == "hacp_call" else arguments
            into.update(added)
            return name, arguments
        name, arguments = self.calls[-1]
        mended = deepcopy(arguments)
        for path, reason in _FAULT.findall(text):
            argument = path.removeprefix("/")
            if (either := _EITHER.search(reason)) is not None:
                mended[argument] = next(one for one in either.groups() if one == self._knows[argument])
                continue
            meant, bound = _MEANT.search(reason), _BOUND.search(reason)
            if reason.startswith("is missing") and argument in self._knows:
                mended[argument] = self._knows[argument]
            elif reason.startswith("there is no argument") and argument in mended:
                value = mended.pop(argument)
                if meant is not None:
                    mended[meant[1].strip('"')] = value
            elif bound is not None:
                mended[argument] = int(bound[1])
            elif meant is not None:
                # The value that the sentence quotes is what was meant otherwise.
                wrong = [key for key, value in mended.items() if repr(value) in reason or json.dumps(value) in reason]
                mended |= dict.fromkeys(wrong, meant[1].strip('"'))
            elif "exactly one of" in reason:
                into = mended["arguments"] if name == "hacp_call" else mended
                into.update({key: value for key, value in self._knows.items() if key in reason})
        near = re.match(r"Unknown tool: \S+; did you mean (\w+)", text)
        name = near[1] if near is not None else name
        return None if (name, mended) == self.calls[-1] else (name, mended)


async def outcome(runtime, client, task):
    """Do a task; what is wrong about how it ended, or None."""
    weak, wanted = Weak(client, task), task["expect"]
    result = await weak.work()
    said = f"{len(weak.calls)} calls, the last {weak.calls[-1]}: {text_of(result)}"
    if result.is_error:
        return said
    step = result.structured_content
    if wanted.get("plan"):
        step = result.structured_content["steps"][0]
        if (step["tool"], step["status"]) != (wanted["tool"], "SUCCESS"):
            return said
        if wanted.get("dry_run") and step["result"].get("dry_run") is not True:
            return said
    elif result.meta["dev.hearth/task"]["tool"] != wanted["tool"]:
        return said
    if not wanted.get("result", {}).items() <= step.items():
        return said
    if "line" in wanted:
        line = wanted["line"]
        level = (await client.call_tool("gpio_get", {"line": line["line"]})).structured_content["value"]
        if level != line["level"]:
            return f"{said}; the line is {level}"
    return None


@pytest.mark.proof
@pytest.mark.parametrize("compact", [False, True], ids=["default", "compact"])
async def test_a_weak_client_recovers_from_every_recorded_mistake_within_two_turns(tmp_path, compact):
    assert len(TASKS) == 30
    offers = all_offers(tmp_path, principal=lambda _ask: "weak", compact=compact)
    failed = {}
    board = open_board(load_profile("sim"))
    board.drivers["i2c:1"].devices[0x48].temperature = lambda: 19.8125
    async with hearth.open_runtime(board=board) as runtime:
        for number, task in enumerate(TASKS):
            # A session of its own, so that every task begins with the lines in their safe state.
            async with mcp_client(runtime, "legacy", offers=offers) as client:
                wrong = await outcome(runtime, client, task)
                if wrong is not None:
                    failed[number, task["task"]] = wrong
    assert failed == {}


def test_a_weak_client_is_lost_without_the_cures():
    """The client adds nothing of its own: an error that names no cure leads nowhere."""
    for task in TASKS:
        weak = Weak(None, task)
        for text in ("Invalid arguments.", "Unknown tool.", "- arguments: they do not fit the schema", ""):
            assert weak.cured(text) is None
