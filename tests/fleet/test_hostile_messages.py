"""What a device does with messages that are none, that it may not obey, or that its disk does not take."""

from __future__ import annotations

import errno
import json
from contextlib import asynccontextmanager

import pytest
import trio
from fleet.bench import Device
from fleet.swarm import connected, serving

from hearth.actors.bridges.amqp.connection import BrokerSettings, open_connection
from hearth.actors.bridges.amqp.uplink import Uplink
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.amqp.messages import AmqpLimits, AmqpMessage
from hearth.hcp import l1
from hearth.hcp.messages import new_id

pytestmark = pytest.mark.slow


@asynccontextmanager
async def publishing(rabbitmq, user):
    """Yields a function that publishes a body as this user, to an exchange with a key."""
    settings = BrokerSettings(limits=AmqpLimits(body=2 << 20))
    async with open_connection(rabbitmq.address(user), settings) as connection, connection.publisher() as publisher:

        async def publish(exchange, key, body, user_id=user):
            message = AmqpMessage(exchange=exchange, routing_key=key, body=body, user_id=user_id, message_id=new_id())
            await publisher.publish(message)

        yield publish


@pytest.fixture
def made(rabbitmq, tmp_path, name):
    """A device that does not run yet, with one caller whose entry has no rights."""
    return Device(rabbitmq, tmp_path, f"dev-{name}", callers=[f"call-{name}"])


async def until(condition):
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  a log has no event
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"\xff", b"[" + b"1," * 20_001 + b"1]", bytes(1_048_577)],
    ids=["no JSON", "no object", "no UTF-8", "too many values", "too large"],
)
async def test_what_is_no_message_is_dropped_and_recorded_and_the_next_order_is_taken(
    rabbitmq, made, name, body
) -> None:
    caller = f"call-{name}"
    async with serving(made.config) as uplink, publishing(rabbitmq, caller) as publish:
        await connected(uplink)
        await publish(l1.COMMANDS, made.id, body)
        harness = await trio.to_thread.run_sync(made.harness, caller)
        harness.command(made.id, harness.submission("looks", {}))
        assert (await trio.to_thread.run_sync(harness.closed))["data"]["final_state"] == "COMPLETED"
        harness.close()
    (refused,) = made.records(event="hcp.reject")
    # The sender of what is too large to be read is not known.
    sender = "-" if len(body) > 1 << 20 else caller
    assert (refused["principal"], refused["reason_code"]) == (f"amqp:{sender}", "invalid_message")


async def test_a_halt_from_whom_no_policy_knows_is_ignored_and_a_reset_needs_its_right(
    rabbitmq, made, name, caplog
) -> None:
    caller = f"call-{name}"
    made.config.write_text(made.config.read_text().replace('rights = ["reset_halt"]\n', ""))
    rabbitmq.add_user(f"no-{name}")
    key, reason = "halt", json.dumps(l1.envelope(l1.HALT, {"reason": "r"}, new_id(), 0)).encode()
    reset = json.dumps(l1.envelope(l1.HALT, {"reset": True}, new_id(), 0)).encode()
    async with serving(made.config) as uplink:
        await connected(uplink)
        halt = uplink._runtime.halt
        async with publishing(rabbitmq, f"no-{name}") as publish:
            await publish(l1.FLEET, key, reason)
            await until(lambda: f"from amqp:no-{name}, which no policy entry matches" in caplog.text)
            await publish(l1.FLEET, key, b"no JSON")
        async with publishing(rabbitmq, caller) as publish:
            assert not halt.flag.halted
            await publish(l1.FLEET, key, reason)
            await until(lambda: halt.flag.halted)
            await publish(l1.FLEET, key, reset)
            await until(lambda: f"does not give amqp:{caller} the right reset_halt" in caplog.text)
            assert halt.flag.halted


async def test_a_reset_of_the_fleet_leaves_a_halt_that_a_person_has_caused(rabbitmq, made, name) -> None:
    caller, reset = f"call-{name}", json.dumps(l1.envelope(l1.HALT, {"reset": True}, new_id(), 0)).encode()
    async with serving(made.config) as uplink, publishing(rabbitmq, caller) as publish:
        await connected(uplink)
        uplink._runtime.halt.halt("by hand", "uid:0")
        await publish(l1.FLEET, "halt", reset)
        async with open_connection(rabbitmq.address()) as connection:
            while (await connection.inspect(l1.halt_queue(made.id))).messages:  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert uplink._runtime.halt.flag.halted


async def test_a_connection_that_is_reset_at_once_is_tried_again(rabbitmq, made, monkeypatch) -> None:
    with trio.socket.socket() as one:
        kind = type(one)
    real, failures = kind.getpeername, iter(range(2))

    def reset(self):
        if next(failures, None) is not None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return real(self)

    monkeypatch.setattr(kind, "getpeername", reset)
    async with serving(made.config) as uplink:
        await connected(uplink)


async def test_a_bug_in_the_uplink_ends_nothing_else_and_it_begins_again(
    rabbitmq, made, name, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("hearth.actors.bridges.amqp.uplink.AGAIN_S", 0.05)
    failures, take = iter(range(1)), Uplink._take

    def buggy(self, delivery, **named):
        if next(failures, None) is not None:
            raise KeyError("a bug")
        take(self, delivery, **named)

    monkeypatch.setattr(Uplink, "_take", buggy)
    harness = await trio.to_thread.run_sync(made.harness, f"call-{name}")
    async with serving(made.config, kept=True) as uplink:
        await connected(uplink)
        harness.command(made.id, harness.submission("looks", {}))
        assert (await trio.to_thread.run_sync(harness.closed))["data"]["final_state"] == "COMPLETED"
        assert "the uplink to the broker crashed" in caplog.text
    harness.close()


async def test_a_job_store_that_fails_is_told_and_tried_again(rabbitmq, made, name, monkeypatch, caplog) -> None:
    monkeypatch.setattr("hearth.actors.bridges.amqp.uplink.RETRY_S", 0.05)
    caller, failures = f"call-{name}", iter(range(3))
    harness = await trio.to_thread.run_sync(made.harness, caller)
    async with serving(made.config) as uplink:
        await connected(uplink)
        job_store = uplink._jobs.services.job_store
        outbox = job_store.outbox

        async def failing(*args):
            if next(failures, None) is not None:
                raise JobStoreError("no space is left on the disk")
            return await outbox(*args)

        async def refusing(*_args):
            raise JobStoreError("no space is left on the disk")

        monkeypatch.setattr(job_store, "outbox", failing)
        monkeypatch.setattr(job_store, "rewind", refusing)
        harness.command(made.id, harness.submission("looks", {}))
        assert (await trio.to_thread.run_sync(harness.closed))["data"]["final_state"] == "COMPLETED"
        assert "the outbox cannot be read or marked: no space is left on the disk" in caplog.text
        ask = {**harness.submission("-", {}), "type": l1.REPLAY, "session_id": harness.messages[0]["session_id"]}
        harness.command(made.id, {**ask, "payload": {"caller_id": caller, "from_sequence": 0}})
        told = await trio.to_thread.run_sync(harness.receive)
        assert told["payload"]["reason_code"] == "resource_unavailable"
    harness.close()


async def test_a_device_that_may_not_announce_itself_does_its_orders(rabbitmq, made, name) -> None:
    rabbitmq.add_user(made.id, write=f"^(hcp\\\\..*|hearth\\\\.halt\\\\.{made.id})$")
    harness = await trio.to_thread.run_sync(made.harness, f"call-{name}")
    async with serving(made.config) as uplink:
        await connected(uplink)
        for _ in range(2):
            harness.command(made.id, harness.submission("looks", {}))
            assert (await trio.to_thread.run_sync(harness.closed))["data"]["final_state"] == "COMPLETED"
        assert uplink.status()["reconnects"] == 0
    harness.close()
