"""Who is told that a resource has changed, and that nobody looks when nobody wants to know; in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import mcp_types as types
import pytest
import trio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from support.mcp import VERSIONS, pollers, serving
from support.waiting import passes

from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.resources import EVERY, MOST_STREAMS, MOST_WATCHED, Changes
from hearth.errors import (
    CarrierError,
    DeviceError,
    InternalError,
    InvalidParams,
    PermissionDenied,
    RateLimited,
    ResourceBusy,
)

OLD, NEW = VERSIONS


class Values(Provider):
    """Resources `v:NAME`, also spelled `V:NAME`; `values` has what each comes to, or the error that looking raises."""

    def __init__(self, **values):
        self.values = values
        self.looks = []
        self.changes = Changes(self.canonical, self.look)

    @staticmethod
    def canonical(uri):
        return uri.lower() if uri.lower().startswith("v:") else None

    async def look(self, _client, uri):
        await trio.lowlevel.checkpoint()
        name = uri.removeprefix("v:")
        self.looks.append((name, trio.current_time()))
        value = self.values[name]
        if isinstance(value, Exception):
            raise value
        return value

    async def resources(self, ask):
        return [types.Resource(uri=f"v:{name}", name=name) for name in self.values]

    async def subscribe(self, ask, params):
        return await self.changes.subscribe(ask, params.uri)

    async def unsubscribe(self, ask, params):
        return self.changes.unsubscribe(ask, params.uri)

    async def listen(self, ask, params):
        return await self.changes.listen(ask, params)

    def looked(self, name="a"):
        return sum(looked == name for looked, _ in self.looks)


class Told:
    """What has come so far, by URI, on the client's own channel (2025-11-25) or on one stream (2026-07-28)."""

    def __init__(self):
        self.uris = []

    async def handler(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            self.uris.append(message.params.uri)

    async def follow(self, stream):
        async for event in stream:
            assert isinstance(event, ResourceUpdated)
            self.uris.append(event.uri)


@asynccontextmanager
async def subscribed(provider, era, *uris):
    """A client that has subscribed to these, what it is told, and the bridge's side of it."""
    told = Told()
    async with serving([provider], era, message_handler=told.handler if era == OLD else None) as (client, ours):
        if era == OLD:
            for uri in uris:
                await client.subscribe_resource(uri)
            yield client, told, ours
        else:
            async with client.listen(resource_subscriptions=uris) as stream, trio.open_nursery() as nursery:
                assert list(stream.honored.resource_subscriptions or ()) == list(uris)
                nursery.start_soon(told.follow, stream)
                yield client, told, ours
                nursery.cancel_scope.cancel()


pytestmark = pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed as of 2026-07-28")


@pytest.fixture(params=VERSIONS)
def era(request):
    return request.param


async def looks(provider, count, name="a"):
    """Wait until it has been looked at so often in all, and told of what was seen the last time but one."""
    already = provider.looked(name)
    while provider.looked(name) < already + count:  # noqa: ASYNC110 - virtual time
        await trio.sleep(EVERY / 4)


async def test_a_change_is_told_once_and_nothing_is_told_while_nothing_changes(autojump_clock, era):
    provider = Values(a=1)
    async with subscribed(provider, era, "v:a") as (_, told, _ours):
        await looks(provider, 3)
        assert told.uris == []
        provider.values["a"] = 2
        await looks(provider, 3)
        assert told.uris == ["v:a"]
        provider.values["a"] = 1
        await looks(provider, 3)
        assert told.uris == ["v:a", "v:a"]


async def test_what_changes_back_between_two_looks_has_not_changed(autojump_clock, era):
    provider = Values(a=1)
    async with subscribed(provider, era, "v:a") as (_, told, _ours):
        provider.values["a"] = 2
        await trio.sleep(EVERY / 2)
        provider.values["a"] = 1
        await looks(provider, 2)
        assert told.uris == []


async def test_a_resource_is_looked_at_once_in_an_interval_however_many_have_subscribed_to_it(autojump_clock):
    provider = Values(a=1)
    async with subscribed(provider, NEW, "v:a") as (client, told, _):
        async with client.listen(resource_subscriptions=["v:a", "V:A"]) as second, trio.open_nursery() as nursery:
            also = Told()
            nursery.start_soon(also.follow, second)
            begun = trio.current_time()
            provider.looks.clear()
            await trio.sleep(10.5 * EVERY)
            assert [at - begun for _, at in provider.looks] == pytest.approx([n * EVERY for n in range(1, 11)])
            provider.values["a"] = 2
            await looks(provider, 2)
            nursery.cancel_scope.cancel()
        assert (told.uris, sorted(also.uris)) == (["v:a"], ["V:A", "v:a"])
        provider.values["a"] = 3
        await looks(provider, 2)
        assert told.uris == ["v:a", "v:a"], "the first stream goes on when the second has ended"


async def test_each_client_looks_for_itself(autojump_clock):
    provider = Values(a=1)
    first, second = (subscribed(provider, era, "v:a") for era in VERSIONS)
    async with first as (_, one, _ours), second as (_, other, _theirs):
        assert provider.looked() == 2
        provider.values["a"] = 2
        await looks(provider, 3)
        assert (one.uris, other.uris) == (["v:a"], ["v:a"])


# --- no poller is left behind ---------------------------------------------------------------------------------------


async def nobody_looks(provider):
    await passes(lambda: pollers() == 0)
    before = len(provider.looks)
    await trio.sleep(20 * EVERY)
    assert len(provider.looks) == before


async def test_looking_ends_with_the_last_unsubscription(autojump_clock):
    provider = Values(a=1, b=1)
    async with subscribed(provider, OLD, "v:a", "V:a", "v:b") as (client, told, _):
        await client.unsubscribe_resource("v:b")
        await client.unsubscribe_resource("v:a")
        provider.values["a"] = 2
        await looks(provider, 2)
        assert told.uris == ["V:a"]
        await client.unsubscribe_resource("V:a")
        await nobody_looks(provider)
        await client.unsubscribe_resource("v:a")  # from what is not subscribed to: nothing
        await client.subscribe_resource("v:a")
        provider.values["a"] = 3
        await looks(provider, 2)
        assert told.uris == ["V:a", "v:a"]


async def test_looking_ends_with_the_last_stream(autojump_clock):
    provider = Values(a=1)
    async with serving([provider], NEW) as (client, _):
        async with client.listen(resource_subscriptions=["v:a"]):
            async with client.listen(resource_subscriptions=["v:a"]):
                pass
            await looks(provider, 2)
        await nobody_looks(provider)


async def test_looking_ends_with_the_client(autojump_clock, era):
    provider = Values(a=1, b=1)
    async with subscribed(provider, era, "v:a", "v:b") as (_, _told, ours):
        await looks(provider, 2)
        assert pollers() == 2
        ours.close()
        await nobody_looks(provider)


async def test_a_stream_of_a_client_that_has_gone_is_ended_in_good_order(autojump_clock):
    provider = Values(a=1)
    async with serving([provider], NEW) as (client, ours), client.listen(resource_subscriptions=["v:a"]) as stream:
        provider.values["a"] = 2
        assert await anext(stream) == ResourceUpdated("v:a")
        ours.close()
        assert [event async for event in stream] == []


async def test_a_subscription_that_is_given_up_while_it_is_looked_at_first_leaves_no_poll(autojump_clock, era):
    provider = Values(a=1)
    looking = trio.Event()

    async def never(_client, _uri):
        looking.set()
        await trio.sleep_forever()

    provider.changes = Changes(provider.canonical, never)
    async with serving([provider], era) as (client, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter, client, era, "v:a")
            await looking.wait()
            nursery.cancel_scope.cancel()
        await passes(lambda: pollers() == 0)


async def enter(client, era, uri):
    if era == OLD:
        await client.subscribe_resource(uri)
    else:
        async with client.listen(resource_subscriptions=[uri]):
            await trio.sleep_forever()


# --- what looking can come to ---------------------------------------------------------------------------------------


async def test_a_device_that_stops_answering_has_changed_and_so_has_one_that_answers_again(autojump_clock, era):
    provider = Values(a=1)
    async with subscribed(provider, era, "v:a") as (_, told, _ours):
        provider.values["a"] = DeviceError("it does not answer")
        await looks(provider, 3)
        assert told.uris == ["v:a"]
        provider.values["a"] = 1
        await looks(provider, 2)
        assert told.uris == ["v:a", "v:a"]


@pytest.mark.parametrize("error", [ResourceBusy(), RateLimited(), CarrierError("gone for now"), InternalError()])
async def test_of_a_look_that_is_refused_for_the_moment_nothing_is_learned(autojump_clock, era, error):
    provider = Values(a=1)
    async with subscribed(provider, era, "v:a") as (_, told, _ours):
        provider.values["a"] = error
        await looks(provider, 3)
        provider.values["a"] = 1
        await looks(provider, 3)
        assert told.uris == []
        provider.values["a"] = 2
        await looks(provider, 2)
        assert told.uris == ["v:a"]


async def test_what_cannot_be_looked_at_yet_can_be_subscribed_to_and_is_no_change_once_it_can(autojump_clock, era):
    provider = Values(a=ResourceBusy())
    async with subscribed(provider, era, "v:a") as (_, told, _ours):
        provider.values["a"] = 1
        await looks(provider, 3)
        assert told.uris == []


async def test_a_rate_limit_is_waited_for(autojump_clock, era):
    provider = Values(a=1)
    async with subscribed(provider, era, "v:a"):
        await looks(provider, 1)
        provider.values["a"] = RateLimited(data={"retry_after_ms": 30_000})
        await looks(provider, 3)
        (_, first), (_, second) = provider.looks[-2:]
        assert second - first == pytest.approx(30)


# --- what is refused ------------------------------------------------------------------------------------------------


async def test_what_is_not_there_cannot_be_subscribed_to(autojump_clock):
    provider = Values(a=InvalidParams("there is no a"))
    async with serving([provider], OLD) as (client, _):
        for uri in ("v:a", "w:b"):
            with pytest.raises(MCPError) as caught:
                await client.subscribe_resource(uri)
            assert (caught.value.code, caught.value.data) == (-32002, {"uri": uri})
        await nobody_looks(provider)
        provider.values["a"] = 1
        await client.subscribe_resource("v:a")


async def test_the_same_subscription_twice_at_once_is_one_and_fails_as_one(autojump_clock):
    provider = Values(a=InvalidParams("there is no a"))
    failed = []
    async with subscribed(provider, OLD) as (client, told, _):

        async def subscribe():
            try:
                await client.subscribe_resource("v:a")
            except MCPError as error:
                failed.append(error.code)

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(subscribe)
                nursery.start_soon(subscribe)
            provider.values["a"] = 1
        assert failed == [-32002, -32002]
        provider.values["a"] = 2
        await looks(provider, 3)
        assert told.uris == ["v:a"]
        await client.unsubscribe_resource("v:a")
        await nobody_looks(provider)


async def test_what_this_client_may_not_read_cannot_be_subscribed_to(autojump_clock):
    provider = Values(a=PermissionDenied("hw.sensor.read is not allowed"))
    async with serving([provider], OLD) as (client, _):
        with pytest.raises(MCPError, match=r"hw\.sensor\.read is not allowed"):
            await client.subscribe_resource("v:a")
        await nobody_looks(provider)


async def test_a_stream_says_which_of_the_resources_it_will_tell_of(autojump_clock):
    provider = Values(a=1, b=InvalidParams(), c=PermissionDenied(), d=4)
    async with serving([provider], NEW) as (client, _):
        wanted = ["v:a", "v:b", "w:x", "v:c", "v:d", "v:a"]
        async with client.listen(resource_subscriptions=wanted, tools_list_changed=True) as stream:
            wanted = types.SubscriptionFilter(resource_subscriptions=["v:a", "v:d"], tools_list_changed=True)
            assert stream.honored == wanted
            provider.values["d"] = 5
            assert await anext(stream) == ResourceUpdated("v:d")
        async with client.listen(resources_list_changed=True) as stream:
            assert stream.honored == types.SubscriptionFilter()


async def test_a_stream_is_refused_while_the_daemon_cannot_be_reached(autojump_clock):
    provider = Values(a=CarrierError("no daemon at /run/hearth.sock"))
    async with serving([provider], NEW) as (client, _):
        with pytest.raises(MCPError, match="no daemon at"):
            async with client.listen(resource_subscriptions=["v:a"]):
                raise AssertionError("nothing is acknowledged")
        await nobody_looks(provider)


async def test_the_resources_that_a_client_has_watched_are_bounded_and_the_bound_says_so(autojump_clock):
    names = [f"n{number}" for number in range(MOST_WATCHED + 1)]
    provider = Values(**dict.fromkeys(names, 1))
    async with subscribed(provider, OLD, *(f"v:{name}" for name in names[:-1])) as (client, _told, _ours):
        with pytest.raises(MCPError, match="has 32 resources watched already; unsubscribe from one of them first"):
            await client.subscribe_resource(f"v:{names[-1]}")
        await client.subscribe_resource(f"V:{names[0]}")  # another spelling of what is watched already
        await client.unsubscribe_resource(f"v:{names[1]}")
        await client.subscribe_resource(f"v:{names[-1]}")
    uris = [f"v:{name}" for name in names]
    async with serving([provider], NEW) as (client, _), client.listen(resource_subscriptions=uris) as stream:
        assert stream.honored.resource_subscriptions == uris[:-1]


async def test_the_streams_of_a_client_are_bounded_and_the_bound_says_so(autojump_clock):
    provider = Values(a=1)
    async with serving([provider], NEW) as (client, _), trio.open_nursery() as nursery:
        opened = [await nursery.start(hold, client) for _ in range(MOST_STREAMS)]
        with pytest.raises(MCPError, match="has 16 streams open already; end one"):
            await hold(client)
        opened[0].set()
        await passes(lambda: len(nursery.child_tasks) < MOST_STREAMS)
        await nursery.start(hold, client)
        nursery.cancel_scope.cancel()


async def hold(client, task_status=trio.TASK_STATUS_IGNORED):
    async with client.listen(resource_subscriptions=["v:a"]):
        ending = trio.Event()
        task_status.started(ending)
        await ending.wait()
