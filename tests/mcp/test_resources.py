"""The hearth:// resources of a running board, read and watched by the official client in both eras."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import mcp_types as types
import pytest
import trio
from attrs import evolve
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from support.mcp import VERSIONS, pollers, serving
from support.waiting import passes

import hearth
from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.resources import Resources, watchable
from hearth.config.model import AuditConfig, Config, PolicyConfig
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.iio.kernel import KernelSensors
from hearth.drivers.sensor import SENSORS_BUS

OLD, NEW = VERSIONS
NOT_FOUND = {OLD: -32002, NEW: -32602}
TEMPERATURE = "hearth://sensors/temperature"


class Watching(Resources):
    """As it is put together with MCP tasks, without those; it looks often."""

    def __init__(self):
        super().__init__(every=0.02)

    async def listen(self, ask, params):
        return await self.changes.listen(ask, params)


@pytest.fixture(params=VERSIONS)
def era(request):
    return request.param


@asynccontextmanager
async def bench(tmp_path, era, *, board="sim", policy=(), **more):
    """A client, the runtime behind it, and the bridge's own side of the client."""
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log", key=tmp_path / "key"), policy=policy)
    with trio.fail_after(30):
        async with (
            hearth.open_runtime(board=board, config=config) as runtime,
            serving([Watching()], era, sessions=runtime, **more) as (client, ours),
        ):
            yield client, runtime, ours


async def read(client, uri):
    """What is at a URI, as the JSON that it is."""
    (contents,) = (await client.read_resource(uri)).contents
    assert (contents.uri, contents.mime_type) == (uri, "application/json")
    return json.loads(contents.text)


def thermometer(runtime):
    return runtime.board.drivers["i2c:1"].devices[0x48]


def records(tmp_path):
    return [json.loads(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]


async def test_what_can_be_read_is_listed_with_its_kind_and_use(tmp_path, era):
    async with bench(tmp_path, era) as (client, _, _ours):
        resources = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
    assert [resource.uri for resource in resources] == [
        "hearth://board",
        "hearth://sensors",
        "hearth://tools",
        "hearth://audit/head",
        TEMPERATURE,
        "hearth://sensors/tank",
        "hearth://sensors/fan_current",
        "hearth://sensors/vibration",
        "hearth://sensors/strain",
    ]
    assert [template.uri_template for template in templates] == ["hearth://sensors/{name}", "hearth://tasks/{task_id}"]
    for entry in (*resources, *templates):
        assert entry.mime_type == "application/json"
        assert entry.title
        assert entry.description
        assert entry.annotations.audience == ["user", "assistant"]
        assert 0 < entry.annotations.priority < 1
    assert resources[4].description == "tmp102 in celsius, on i2c:1: room temperature"


async def test_each_resource_is_what_the_tool_behind_it_answers(tmp_path, era):
    async with bench(tmp_path, era) as (client, runtime, _ours), runtime.open_session() as session:
        thermometer(runtime).temperature = lambda: 21.5
        board = await read(client, "hearth://board")
        expected = await session.run("hw.board")
        # Health, and what the interlocks read with its age, are those of the moment.
        moment = {"health": None, "interlocks": None}
        assert {**board, **moment} == {**expected, **moment}
        assert board["health"]["ok"] is True
        assert await read(client, "hearth://sensors") == await session.run("hw.sensor.list")
        assert await read(client, TEMPERATURE) == {"sensor": "temperature", "value": 21.5, "unit": "celsius"}
        assert await read(client, "hearth://tools") == {"tools": await session.tools()}
        head = await read(client, "hearth://audit/head")
        assert head["ok"] is True
        assert head["head"].startswith("sha256:")
        assert 0 < head["seq"] <= records(tmp_path)[-1]["seq"]


async def test_what_is_read_is_on_the_record_as_any_step_is(tmp_path, era):
    async with bench(tmp_path, era) as (client, _, _ours):
        await read(client, TEMPERATURE)
    (opened,) = [record for record in records(tmp_path) if record["event"] == "session.open"]
    (submitted,) = [record for record in records(tmp_path) if record["event"] == "task.submit"]
    (started,) = [record for record in records(tmp_path) if record["event"] == "task.step.start"]
    assert opened["session_id"] == submitted["session_id"] == started["session_id"]
    assert submitted["intent"] == f"resources/read {TEMPERATURE}"
    assert started["tool"] == "hw.sensor.read"


NOWHERE = {
    "hearth://sensors/nope": ": board 'sim' has no sensor 'nope'; it has: temperature",
    "hearth://sensors/" + "x" * 2000: ": ",
    "hearth://tasks/01HZQK3P8EMXR9V7T5N2W4J6C0": ": Task unknown for this session",
    "hearth://tasks/": "",
    "hearth://sensors/": "",
    "hearth://nothing": "",
    "hearth://board/": "",
    "test://nonexistent-resource": "",
}


async def test_what_is_not_there_is_refused_with_the_code_of_each_era_and_the_uri(tmp_path, era):
    async with bench(tmp_path, era) as (client, _, _ours):
        for uri, why in NOWHERE.items():
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert (caught.value.code, caught.value.data) == (NOT_FOUND[era], {"uri": uri[:1000]})
            assert caught.value.message.startswith(f"Resource not found{why}")


async def test_a_task_is_read_by_its_id_and_only_in_the_session_that_it_is_of(tmp_path, era):
    async with bench(tmp_path, era) as (client, runtime, ours):
        session = await ours.session()
        task = await session.submit("look", [hearth.step("gpio.get", line=17), hearth.step("hw.sensor.list")])
        await task.wait()
        uri = f"hearth://tasks/{task.task_id}"
        told = await read(client, uri)
        assert (told["task_id"], told["intent"], told["status"]) == (task.task_id, "look", "SUCCESS")
        assert told["steps"][0]["result"] == {"line": 17, "value": 0}
        async with serving([Watching()], era, sessions=runtime) as (other, _):
            with pytest.raises(MCPError, match="Resource not found"):
                await other.read_resource(uri)
        await session.close()
        with pytest.raises(MCPError, match="Resource not found: Task unknown"):
            await client.read_resource(uri)
        assert (await ours.session()).session_id != session.session_id, "the client has a new session since"


async def test_a_session_that_has_ended_is_replaced_before_anything_is_read(tmp_path, era):
    async with bench(tmp_path, era) as (client, _, ours):
        for uri in (TEMPERATURE, "hearth://tools"):
            await (await ours.session()).close()
            assert await read(client, uri)


async def test_what_the_principal_may_not_use_is_not_listed_and_cannot_be_read(tmp_path, era):
    only = PolicyConfig(name="pins", match={"any": True}, tools=("gpio.*", "hw.sensor.list"))
    async with bench(tmp_path, era, policy=(only,)) as (client, _, _ours):
        assert [resource.uri for resource in (await client.list_resources()).resources] == [
            "hearth://sensors",
            "hearth://tools",
        ]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "hearth://tasks/{task_id}"
        for uri in ("hearth://board", "hearth://audit/head", TEMPERATURE):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.data["dev.hearth/error"]["symbol"] == "RPC_PERMISSION_DENIED"
        if era == NEW:
            async with client.listen(resource_subscriptions=[TEMPERATURE]) as stream:
                assert stream.honored.resource_subscriptions is None


async def test_a_sensor_that_does_not_answer_is_an_error_in_words_and_not_a_missing_resource(tmp_path, era):
    async with bench(tmp_path, era) as (client, runtime, _ours):
        runtime.board.drivers["i2c:1"].faults.nack(addr=0x48)
        with pytest.raises(MCPError) as caught:
            await client.read_resource(TEMPERATURE)
        assert caught.value.code == -32603
        assert caught.value.data["dev.hearth/error"]["symbol"] == "DEVICE_ERROR"


async def test_a_list_of_sensors_that_cannot_be_had_at_the_moment_leaves_the_rest(tmp_path, era):
    rare = PolicyConfig(name="rare", match={"any": True}, rate={"hw.sensor.list": "1/h"})
    async with bench(tmp_path, era, policy=(rare,)) as (client, _, _ours):
        await read(client, "hearth://sensors")
        resources = (await client.list_resources()).resources
        assert [resource.uri for resource in resources][-1] == "hearth://audit/head"


async def test_the_kernels_sensors_have_slashes_in_their_names_and_are_read_in_either_spelling(tmp_path, era):
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    for name, content in {"name": "chip", "temp1_input": 25500, "temp1_label": "CPU"}.items():
        (chip / name).write_text(f"{content}\n")
    board = open_board(load_profile("sim"))
    board = evolve(board, drivers={**board.drivers, SENSORS_BUS: KernelSensors(sys=tmp_path / "sys")})
    async with bench(tmp_path, era, board=board) as (client, _, _ours):
        listed = {resource.name: resource for resource in (await client.list_resources()).resources}
        resource = listed["hwmon/chip/temp1"]
        assert (resource.uri, resource.title) == ("hearth://sensors/hwmon%2Fchip%2Ftemp1", "CPU")
        for uri in (resource.uri, "hearth://sensors/hwmon/chip/temp1"):
            assert (await read(client, uri))["value"] == 25.5
        for gone in ("hearth://sensors/hwmon/chip/temp9", "hearth://sensors/hwmon%2Fnone%2Ftemp1"):
            with pytest.raises(MCPError, match="Resource not found: there is no sensor") as caught:
                await client.read_resource(gone)
            assert caught.value.code == NOT_FOUND[era]


def test_a_uri_that_can_be_watched_has_one_spelling():
    assert watchable("hearth://sensors/hwmon/chip/temp1") == "hearth://sensors/hwmon%2Fchip%2Ftemp1"
    assert watchable("hearth://sensors/hwmon%2fchip%2Ftemp1") == "hearth://sensors/hwmon%2Fchip%2Ftemp1"
    assert watchable("hearth://board") == "hearth://board"
    for other in ("hearth://sensors", "hearth://sensors/", "hearth://tools", "hearth://audit/head", "x://board"):
        assert watchable(other) is None


# --- watched --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(tmp_path, era, uri, **more):
    """The runtime, and a function that waits for the next word of a change."""
    send, receive = trio.open_memory_channel(100)

    async def handler(message):
        if isinstance(message, types.ResourceUpdatedNotification):
            send.send_nowait(message.params.uri)

    if era == OLD:
        async with bench(tmp_path, era, message_handler=handler, **more) as (client, runtime, ours):
            await client.subscribe_resource(uri)
            yield client, runtime, ours, receive.receive
    else:
        async with (
            bench(tmp_path, era, **more) as (client, runtime, ours),
            client.listen(resource_subscriptions=[uri]) as stream,
        ):
            assert stream.honored.resource_subscriptions == [uri]

            async def changed():
                event = await anext(stream)
                assert isinstance(event, ResourceUpdated)
                return event.uri

            yield client, runtime, ours, changed


watches = pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed as of 2026-07-28")


@pytest.mark.slow
@watches
async def test_a_sensor_that_is_watched_is_told_of_when_its_value_has_changed(tmp_path, era):
    async with watched(tmp_path, era, TEMPERATURE) as (client, runtime, _, changed):
        for value in (40.0, 41.5):
            thermometer(runtime).temperature = lambda value=value: value
            assert await changed() == TEMPERATURE
            while (await read(client, TEMPERATURE))["value"] != value:
                assert await changed() == TEMPERATURE  # the room's own swing came first


@pytest.mark.slow
@watches
async def test_a_sensor_that_stops_answering_and_answers_again_is_told_of_twice(tmp_path, era):
    board = open_board(load_profile("sim"))
    looks = []

    def steady():
        looks.append(None)
        return 20.0

    # Before anybody looks: the first look is what later ones are compared with, and nobody is told of it.
    board.drivers["i2c:1"].devices[0x48].temperature = steady
    async with watched(tmp_path, era, TEMPERATURE, board=board) as (client, _, _ours, changed):
        await passes(lambda: len(looks) >= 3)
        board.drivers["i2c:1"].faults.nack(times=10**9, addr=0x48)
        assert await changed() == TEMPERATURE
        board.drivers["i2c:1"].faults.clear()
        assert await changed() == TEMPERATURE
        assert (await read(client, TEMPERATURE))["value"] == 20.0


@pytest.mark.proof
async def test_the_board_is_told_of_when_a_bus_is_no_longer_well(tmp_path):
    async with watched(tmp_path, NEW, "hearth://board") as (client, runtime, ours, changed):
        faults = runtime.board.drivers["i2c:1"].faults
        faults.wedge(addr=0x48)
        session = await ours.session()
        await session.submit("hang", [hearth.step("i2c.read", bus=1, addr="0x48", len=1)])
        assert await changed() == "hearth://board"
        assert (await read(client, "hearth://board"))["health"]["buses"]["i2c:1"]["state"] == "wedged"
        faults.release()
        assert await changed() == "hearth://board"


@watches
async def test_a_session_that_has_ended_is_replaced_under_a_subscription(tmp_path, era):
    async with watched(tmp_path, era, TEMPERATURE) as (_, runtime, ours, changed):
        await (await ours.session()).close()
        thermometer(runtime).temperature = lambda: 50.0
        assert await changed() == TEMPERATURE


@watches
async def test_only_what_moves_can_be_subscribed_to(tmp_path):
    async with bench(tmp_path, OLD) as (client, _, _ours):
        for uri in ("hearth://tools", "hearth://audit/head", "hearth://sensors", "hearth://sensors/nope"):
            with pytest.raises(MCPError, match="Resource not found"):
                await client.subscribe_resource(uri)


@watches
async def test_after_an_unsubscription_nothing_is_measured(tmp_path):
    async with watched(tmp_path, OLD, TEMPERATURE) as (client, runtime, _, changed):
        thermometer(runtime).temperature = lambda: 50.0
        await changed()
        for uri in (TEMPERATURE, TEMPERATURE, "hearth://tools"):
            await client.unsubscribe_resource(uri)
        await passes(lambda: pollers() == 0)


def test_resources_leave_subscriptions_listen_to_the_server_of_the_whole_stream():
    assert Resources.listen is Provider.listen
