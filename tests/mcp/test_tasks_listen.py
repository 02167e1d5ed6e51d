"""Status notifications of tasks: subscriptions/listen with `taskIds`."""

import mcp_types as types
import pytest
import trio
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from support.mcp_tasks import EXTENSION, Errands, accepted, form, serving, text

from hearth.actors.bridges.mcp.long_call import LEASE
from hearth.actors.bridges.mcp.tasks import MOST_WATCHES, Tasks, Terms

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
STATUS = "notifications/tasks"
STREAM = "io.modelcontextprotocol/subscriptionId"


async def at_once(_ask, _params):
    return Terms(after=0)


async def nap(ask, params):
    await trio.sleep(params.arguments["s"] / 2)
    await ask.ctx.session.report_progress(1, 2, "half")
    await trio.sleep(params.arguments["s"] / 2)
    return text("slept")


async def confirm(_ask, params):
    if not params.input_responses:
        return types.InputRequiredResult(input_requests={"sure": form("Sure?", "s")})
    return text("confirmed")


ERRANDS = Errands(nap=nap, confirm=confirm)


async def listen(wire, *task_ids, **more):
    """Open a stream; returns its id and what is acknowledged."""
    id_ = await wire.send("subscriptions/listen", {"notifications": {"taskIds": list(task_ids)}}, **more)
    (acknowledged,) = await wire.until(lambda: of(wire, ACKNOWLEDGED, id_))
    return id_, acknowledged["notifications"]


def status(wire, id_):
    """The status that was told of last."""
    return of(wire, STATUS, id_)[-1:] and of(wire, STATUS, id_)[-1]["status"]


def of(wire, method, id_):
    return [params for params in wire.said(method) if params["_meta"][STREAM] == id_]


async def test_a_stream_tells_how_a_task_stands_at_first_and_after_every_change_as_tasks_get_does(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        created = await wire.call("nap", {"s": 10})
        id_, honored = await listen(wire, created["taskId"])
        assert honored == {"taskIds": [created["taskId"]]}
        said = await wire.until(lambda: len(of(wire, STATUS, id_)) >= 3 and of(wire, STATUS, id_))
        done = await wire.get(created)

    assert [(state["status"], state.get("statusMessage")) for state in said] == [
        ("working", None),
        ("working", "half"),
        ("completed", None),
    ]
    last = {name: value for name, value in said[-1].items() if name not in ("_meta", "ttlMs")}
    assert last == {name: value for name, value in done.items() if name not in ("_meta", "ttlMs", "resultType")}
    assert wire.notifications[0][0] == ACKNOWLEDGED


async def test_a_stream_tells_what_a_task_asks(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        created = await wire.call("confirm")
        id_, _ = await listen(wire, created["taskId"])

        def asking():
            return [state for state in of(wire, STATUS, id_) if state["status"] == "input_required"]

        (state, *_) = await wire.until(asking)
        await wire.update(created, {key: accepted(s="yes") for key in state["inputRequests"]})
        await wire.until(lambda: status(wire, id_) == "completed")


@pytest.mark.slow
async def test_only_the_clients_own_tasks_are_told_of(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        mine = await wire.call("nap", {"s": 10}, name="a")
        other = await wire.call("nap", {"s": 10}, name="a")
        theirs = await wire.call("nap", {"s": 10}, name="b")
        id_, honored = await listen(wire, theirs["taskId"], mine["taskId"], "0" * 32, mine["taskId"], name="a")
        assert honored == {"taskIds": [mine["taskId"]]}
        await wire.ends(other, name="a")
        await wire.until(lambda: status(wire, id_) == "completed")
        assert {state["taskId"] for state in of(wire, STATUS, id_)} == {mine["taskId"]}


async def test_a_listener_has_not_vanished(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        created = await wire.call("nap", {"s": 3 * LEASE})
        id_, _ = await listen(wire, created["taskId"])
        await wire.until(lambda: status(wire, id_) == "completed")


async def test_a_task_that_is_over_is_not_kept_by_those_who_listened_to_it(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        created = await wire.call("nap", {"s": 2})
        await listen(wire, created["taskId"])
        await trio.sleep(LEASE + 10)
        with pytest.raises(MCPError, match="not found"):
            await wire.get(created)


async def test_a_client_that_has_not_declared_the_extension_may_not_listen_to_tasks(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        with pytest.raises(MCPError) as caught:
            await wire.ask("subscriptions/listen", {"notifications": {"taskIds": []}}, capabilities={})
    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("ids", ["all", [1], {"a": 1}])
async def test_what_is_no_list_of_ids_is_refused(autojump_clock, ids):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        with pytest.raises(MCPError, match=r"notifications\.taskIds") as caught:
            await wire.ask("subscriptions/listen", {"notifications": {"taskIds": ids}})
    assert caught.value.code == types.INVALID_PARAMS


async def test_a_client_has_so_many_streams_and_a_place_is_free_again_when_one_ends(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        streams = [(await listen(wire))[0] for _ in range(MOST_WATCHES)]
        with pytest.raises(MCPError, match="16 streams"):
            await wire.ask("subscriptions/listen", {"notifications": {"taskIds": []}})
        await listen(wire, name="b")
        await wire.notify("notifications/cancelled", {"requestId": streams[0]})
        await trio.sleep(1)
        await listen(wire)


async def test_a_stream_ends_when_its_client_has_gone(autojump_clock):
    async with serving(Tasks(at_once), ERRANDS) as wire:
        id_, _ = await listen(wire)
        wire.serving.clients.clients["a"].close()
        assert (await wire.answer(id_))["_meta"][STREAM] == id_


async def test_tasks_are_told_of_on_the_stream_of_everything_else(autojump_clock):
    bus = InMemorySubscriptionBus()
    handler = ListenHandler(bus)

    async def others(ask, params):
        await trio.sleep(1)  # as long as it takes to look at what is subscribed to
        return await handler(ask.ctx, params)

    async with serving(Tasks(at_once, listen=others), ERRANDS) as wire:
        created = await wire.call("nap", {"s": 10})
        wanted = {"taskIds": [created["taskId"]], "resourceSubscriptions": ["x:a"]}
        id_ = await wire.send("subscriptions/listen", {"notifications": wanted})
        (acknowledged,) = await wire.until(lambda: of(wire, ACKNOWLEDGED, id_))
        assert acknowledged["notifications"] == wanted
        assert wire.notifications[0][0] == ACKNOWLEDGED
        await bus.publish(ResourceUpdated("x:a"))
        await wire.until(lambda: of(wire, "notifications/resources/updated", id_))
        await wire.until(lambda: status(wire, id_) == "completed")
        handler.close()
        assert (await wire.answer(id_))["_meta"][STREAM] == id_
        await wire.call("nap", {"s": 1})


async def test_without_tasks_the_stream_is_that_of_everything_else(autojump_clock):
    handler = ListenHandler(InMemorySubscriptionBus())

    async def others(ask, params):
        return await handler(ask.ctx, params)

    async with serving(Tasks(at_once, listen=others), ERRANDS) as wire:
        id_ = await wire.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, capabilities={})
        (acknowledged,) = await wire.until(lambda: of(wire, ACKNOWLEDGED, id_))
        assert acknowledged["notifications"] == {"toolsListChanged": True}


async def test_what_refuses_everything_else_refuses_the_stream_and_lets_its_place_go(autojump_clock):
    handler = ListenHandler(InMemorySubscriptionBus(), max_subscriptions=0)

    async def others(ask, params):
        return await handler(ask.ctx, params)

    async with serving(Tasks(at_once, listen=others), ERRANDS) as wire:
        for _ in range(MOST_WATCHES + 1):
            with pytest.raises(MCPError, match="Subscription limit reached"):
                await wire.ask("subscriptions/listen", {"notifications": {"taskIds": []}})
