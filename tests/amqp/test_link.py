"""The connection's clock: heartbeats, deadlines, windows and back-off, in virtual time before a scripted broker."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from attrs import evolve
from pamqp import commands, frame
from support.amqp import OPEN_OK, START, TUNE, deliver, method
from support.ports import free_port
from trio.testing import memory_stream_pair

from hearth.actors.bridges.amqp import connection as client, handshake
from hearth.actors.bridges.amqp.connection import BrokerSettings, LinkState, open_connection, stay_connected
from hearth.amqp.address import BrokerAddress
from hearth.amqp.errors import (
    AmqpMisuse,
    AmqpProtocolError,
    BrokerBlocked,
    BrokerConnectionLost,
    BrokerUnreachable,
    ConnectionForced,
    EntityNotFound,
    PublishUnconfirmed,
)
from hearth.amqp.messages import AmqpMessage
from hearth.amqp.topology import Queue, Topology
from hearth.errors import ConfigError

HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
SETTINGS = BrokerSettings(heartbeat=10)


@pytest.fixture
def address(tmp_path):
    """The address of a broker that is not needed: the tests bring their own streams."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    return BrokerAddress("127.0.0.1", 5672, False, user="arm", password_file=password)


class ScriptedBroker:
    """The other end of the next connection: answers the handshake and what `answers` has, and notes what it is sent."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.turn = trio.Lock()
        self.got = []
        self.times = []
        self.rest = b""
        self.answers = {
            "ProtocolHeader": START, "Connection.StartOk": TUNE, "Connection.Open": OPEN_OK,
            "Channel.Open": commands.Channel.OpenOk(), "Confirm.Select": commands.Confirm.SelectOk(),
            "Basic.Qos": commands.Basic.QosOk(), "Basic.Consume": commands.Basic.ConsumeOk("hearth-1"),
            "Channel.Close": commands.Channel.CloseOk(), "Connection.Close": commands.Connection.CloseOk(),
        }  # fmt: skip

    async def send(self, *each, channel=0) -> None:
        """Send methods, or bytes."""
        async with self.turn:
            for one in each:
                await self.stream.send_all(one if isinstance(one, bytes) else method(one, channel))

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        """Answer until the connection ends."""
        task_status.started()
        try:
            while data := await self.stream.receive_some():
                self.rest += data
                while len(self.rest) >= 8 and (self.rest[:4] == b"AMQP" or len(self.rest) >= self._size()):
                    used, channel, each = frame.unmarshal(self.rest)
                    self.rest = self.rest[used:]
                    self.got.append(each.name)
                    self.times.append((trio.current_time(), each.name))
                    if each.name in self.answers:
                        await self.send(self.answers[each.name], channel=channel)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _size(self) -> int:
        return int.from_bytes(self.rest[3:7], "big") + 8


@pytest.fixture
async def brokers(monkeypatch, nursery):
    """The brokers of the connections so far, each scripted by `brokers.script`; `brokers.refuse` fails the attempt."""

    class Brokers(list):
        script = staticmethod(lambda broker: None)
        refuse = None

    made = Brokers()

    async def connect(*_) -> trio.abc.Stream:
        if made.refuse is not None:
            raise made.refuse
        ours, theirs = memory_stream_pair()
        broker = ScriptedBroker(theirs)
        made.script(broker)
        made.append(broker)
        nursery.start_soon(broker.run)
        return ours

    monkeypatch.setattr(client, "open_stream", connect)
    return made


async def test_heartbeats_go_out_at_half_the_interval_and_none_beside_other_traffic(
    brokers, address, autojump_clock
) -> None:
    async def use() -> None:
        async with open_connection(address, SETTINGS):
            await trio.sleep_forever()

    with pytest.raises(BrokerConnectionLost, match=r"is silent: no whole frame within 20 s \(two heartbeats\)"):
        await use()
    assert trio.current_time() == 20
    assert [time for time, name in brokers[0].times if name == "Heartbeat"] == [5, 10, 15]


async def test_heartbeats_of_the_broker_keep_a_connection_and_single_bytes_do_not(
    brokers, address, autojump_clock, nursery
) -> None:
    async def lost() -> float:
        async with open_connection(address, SETTINGS):
            (broker,) = brokers
            for _ in range(10):
                await trio.sleep(19)
                await broker.send(HEARTBEAT)
            started.append(trio.current_time())
            for byte in method(commands.Connection.Blocked("x" * 200)):
                await broker.send(bytes([byte]))
                await trio.sleep(1)

    started = []
    with pytest.raises(BrokerConnectionLost, match="is silent"):
        await lost()
    assert trio.current_time() - started[0] == 20


async def test_a_handshake_has_one_deadline_however_much_comes(brokers, address, autojump_clock) -> None:
    brokers.script = lambda broker: broker.answers.clear()
    with pytest.raises(BrokerUnreachable, match=r"no connection to amqp://127.0.0.1:5672 within 10 s: is 127.0.0.1 on"):
        async with open_connection(address, SETTINGS):
            pass
    assert trio.current_time() == pytest.approx(10)


async def test_a_handshake_that_the_broker_breaks_off_has_its_reason(brokers, address, autojump_clock) -> None:
    brokers.script = lambda broker: broker.answers.update({"ProtocolHeader": b"SSH-2.0-OpenSSH_9.2\r\n"})
    with pytest.raises(AmqpProtocolError, match="it is no AMQP broker that answers"):
        async with open_connection(address, SETTINGS):
            pass


async def test_a_command_without_an_answer_ends_the_connection_after_its_time(brokers, address, autojump_clock) -> None:
    seen = []

    async def use() -> None:
        async with open_connection(address, BrokerSettings(call_timeout=3, heartbeat=10)) as connection:
            with pytest.raises(BrokerConnectionLost, match="did not answer within 3 s"):
                await connection.inspect("q")
            seen.append(trio.current_time())
            await trio.sleep_forever()

    with pytest.raises(BrokerConnectionLost, match="did not answer within 3 s"):
        await use()
    assert seen == [3]


async def test_leaving_closes_in_order_and_waits_for_a_mute_broker_only_so_long(
    brokers, address, autojump_clock
) -> None:
    async with open_connection(address, SETTINGS):
        pass
    assert brokers[0].got[-1] == "Connection.Close"
    brokers.script = lambda broker: broker.answers.pop("Connection.Close")
    start = trio.current_time()
    async with open_connection(address, BrokerSettings(close_timeout=4)):
        pass
    assert trio.current_time() - start == 4


async def test_a_cancelled_block_closes_politely_too(brokers, address, autojump_clock) -> None:
    with trio.move_on_after(1):
        async with open_connection(address, SETTINGS) as connection, connection.consume("q"):
            await trio.sleep_forever()
    assert brokers[0].got[-2:] == ["Channel.Close", "Connection.Close"]


async def test_an_exception_of_the_block_passes_as_it_is(brokers, address, autojump_clock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_connection(address, SETTINGS) as connection, connection.publisher():
            raise ZeroDivisionError
    assert brokers[0].got[-1] == "Connection.Close"


async def test_a_breach_of_the_protocol_is_told_to_the_peer_before_the_end(brokers, address, autojump_clock) -> None:
    async def use() -> None:
        async with open_connection(address, SETTINGS):
            await brokers[0].send(b"\x07\0\0")
            await trio.sleep_forever()

    with pytest.raises(AmqpProtocolError, match="a frame of the unknown type 7"):
        await use()
    await trio.testing.wait_all_tasks_blocked()
    assert brokers[0].got[-1] == "Connection.Close"


async def test_a_broker_that_does_not_read_is_lost_after_two_heartbeats(
    brokers, address, autojump_clock, nursery
) -> None:
    async def beat() -> None:
        for _ in range(5):
            await brokers[0].send(HEARTBEAT)
            await trio.sleep(6)

    async def use() -> None:
        async with open_connection(address, SETTINGS) as connection, connection.publisher() as publisher:
            connection._stream.send_stream.send_all_hook = trio.sleep_forever
            nursery.start_soon(beat)
            await publisher.publish(AmqpMessage(exchange="", routing_key="q", body=b"x"))

    with pytest.raises(PublishUnconfirmed, match="has read nothing for 20 s"):
        await use()


async def test_a_blocked_broker_need_not_read_or_answer_while_it_sends_heartbeats(
    brokers, address, autojump_clock, nursery
) -> None:
    async def beat() -> None:
        for _ in range(20):
            await brokers[0].send(HEARTBEAT)
            await trio.sleep(6)

    async def use() -> None:
        settings = BrokerSettings(heartbeat=10, call_timeout=30)
        async with open_connection(address, settings) as connection, connection.publisher() as publisher:
            nursery.start_soon(beat)
            connection._stream.send_stream.send_all_hook = trio.sleep_forever
            confirmation = await publisher.send(AmqpMessage(exchange="", routing_key="q", body=b"x"))
            await trio.sleep(10)  # it is being written
            await brokers[0].send(commands.Connection.Blocked("low on\x1bmemory"))
            await trio.sleep(20)
            with pytest.raises(BrokerBlocked, match=r"not answered for 30 s: it is blocked \(low on\?memory\)"):
                await connection.inspect("q")
            assert trio.current_time() == 60
            await brokers[0].send(commands.Connection.Unblocked())
            await confirmation.wait()

    with pytest.raises(PublishUnconfirmed, match="has read nothing for 20 s"):
        await use()
    assert trio.current_time() == 80


async def test_what_comes_right_behind_the_handshake_counts(brokers, address, autojump_clock) -> None:
    closed = method(OPEN_OK) + method(commands.Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0))
    brokers.script = lambda broker: broker.answers.update({"Connection.Open": closed})

    async def use() -> None:
        async with open_connection(address, SETTINGS):
            await trio.sleep_forever()

    with pytest.raises(ConnectionForced):
        await use()
    assert trio.current_time() == 0


async def test_a_window_lets_so_many_messages_out_and_no_more(brokers, address, autojump_clock, nursery) -> None:
    sent = []

    async def flood(publisher) -> None:
        message = AmqpMessage(exchange="", routing_key="q", body=b"x")
        sent.extend([await publisher.send(message) for _ in range(2)])
        for _ in range(3):
            sent.append(await publisher.send(message))  # noqa: PERF401 - the test looks at how many there are

    async with open_connection(address, SETTINGS) as connection, connection.publisher(window=2) as publisher:
        nursery.start_soon(flood, publisher)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == 2
        await brokers[0].send(commands.Basic.Ack(1), channel=1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == 3
        await brokers[0].send(commands.Basic.Ack(3, multiple=True), channel=1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == 5
        await brokers[0].send(commands.Basic.Ack(0, multiple=True), channel=1)
        for each in sent:
            await each.wait()


async def test_publishers_that_wait_for_the_window_learn_of_the_end_of_the_channel(
    brokers, address, autojump_clock, nursery
) -> None:
    failed = []

    async def publish(publisher) -> None:
        try:
            await publisher.publish(AmqpMessage(exchange="e", routing_key="q", body=b"x"))
        except EntityNotFound as error:
            failed.append(error)

    async with open_connection(address, SETTINGS) as connection, connection.publisher(window=1) as publisher:
        for _ in range(3):
            nursery.start_soon(publish, publisher)
        await trio.testing.wait_all_tasks_blocked()
        await brokers[0].send(commands.Channel.Close(404, "NOT_FOUND - no exchange 'e'", 60, 40), channel=1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(failed) == 3
        assert len({id(error) for error in failed}) == 3


async def test_leaving_a_publisher_without_confirmations_says_that_they_are_unknown(
    brokers, address, autojump_clock
) -> None:
    async with open_connection(address, BrokerSettings(close_timeout=2)) as connection:
        async with connection.publisher() as publisher:
            confirmation = await publisher.send(AmqpMessage(exchange="", routing_key="q", body=b"x"))
        assert trio.current_time() == pytest.approx(2)
        with pytest.raises(PublishUnconfirmed, match="its channel is closed"):
            await confirmation.wait()


async def test_a_broker_that_confirms_nothing_is_lost_after_its_time_but_not_while_it_is_blocked(
    brokers, address, autojump_clock, nursery
) -> None:
    async def beat() -> None:
        while True:
            await trio.sleep(10)
            await brokers[0].send(HEARTBEAT)

    async def use() -> None:
        async with open_connection(address, BrokerSettings(heartbeat=10, confirm_timeout=60)) as connection:
            nursery.start_soon(beat)
            async with connection.publisher() as publisher:
                await trio.sleep(1000)
                confirmation = await publisher.send(AmqpMessage(exchange="", routing_key="q", body=b"x"))
                await brokers[0].send(commands.Connection.Blocked("low on memory"))
                await trio.sleep(1000)
                await brokers[0].send(commands.Connection.Unblocked())
                ended.append(trio.current_time())
                await confirmation.wait()

    ended = []
    with pytest.raises(PublishUnconfirmed, match="has confirmed nothing for 60 s"):
        await use()
    nursery.cancel_scope.cancel()
    assert 55 <= trio.current_time() - ended[0] <= 70


async def test_deliveries_wait_for_a_slow_consumer_in_the_room_of_its_prefetch(
    brokers, address, autojump_clock
) -> None:
    async with open_connection(address, SETTINGS) as connection:
        async with connection.consume("q", prefetch=3) as consumer:
            for tag in (1, 2, 3):
                await brokers[0].send(deliver(tag))
            await trio.testing.wait_all_tasks_blocked()
            found = [await consumer.receive() for _ in range(3)]
            assert not any(each.settled for each in found)
        with pytest.raises(AmqpMisuse, match="this channel is closed"):
            await consumer.receive()


# --- connecting again -----------------------------------------------------------------------------------------------


async def linked(address, serve, **options):
    """What stay_connected returns, and its changes with their times."""
    changes = []
    options.setdefault("uniform", lambda low, high: high)
    result = await stay_connected(
        address, serve, on_change=lambda state: changes.append((trio.current_time(), state)), **options
    )
    return result, changes


async def test_the_wait_doubles_up_to_its_bound_and_is_drawn_from_its_upper_half(
    brokers, address, autojump_clock
) -> None:
    brokers.refuse = BrokerUnreachable("no way")
    drawn = []

    def uniform(low, high) -> float:
        drawn.append((low, high))
        if len(drawn) == 8:
            brokers.refuse = None
        return high

    async def serve(connection) -> str:
        return "done"

    result, changes = await linked(address, serve, uniform=uniform, settings=BrokerSettings(backoff_most=10))
    assert result == "done"
    assert [high for _, high in drawn] == [0.5, 1, 2, 4, 8, 10, 10, 10]
    assert all(low == high / 2 for low, high in drawn)
    assert [time for time, _ in changes] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5, 45.5]
    assert changes[0][1] == LinkState(connected=False, error=brokers.refuse or changes[0][1].error, retry_in=0.5)
    assert changes[-1][1] == LinkState(connected=True)


async def test_a_connection_that_lasted_starts_the_wait_again_and_one_that_did_not_does_not(
    brokers, address, autojump_clock
) -> None:
    lasts = iter([1, 1, 31, 1])
    settings = BrokerSettings(heartbeat=1000)

    async def serve(_) -> None:
        await trio.sleep(next(lasts))
        if len(brokers) == 4:
            return
        await brokers[-1].stream.aclose()
        await trio.sleep_forever()

    _, changes = await linked(address, serve, settings=settings)
    waits = [state.retry_in for _, state in changes if not state.connected]
    assert waits == [0.5, 1, 0.5]
    assert all(isinstance(state.error, BrokerConnectionLost) for _, state in changes if not state.connected)


async def test_the_topology_is_declared_on_each_connection_before_it_is_served(
    brokers, address, autojump_clock
) -> None:
    answers = {"Queue.Declare": commands.Queue.DeclareOk("q", 0, 0)}
    brokers.script = lambda broker: broker.answers.update(answers)

    async def serve(connection) -> None:
        assert brokers[-1].got.count("Queue.Declare") == 1
        if len(brokers) == 1:
            connection.abort(BrokerConnectionLost("a test"))
            await trio.sleep_forever()

    await linked(address, serve, topology=Topology(queues=(Queue("q"),)))
    assert len(brokers) == 2


async def test_a_refused_declaration_counts_as_a_loss_and_is_tried_again(brokers, address, autojump_clock) -> None:
    def script(broker) -> None:
        refused = commands.Channel.Close(404, "NOT_FOUND - no exchange", 40, 10)
        declared = commands.Queue.DeclareOk("q", 0, 0)
        broker.answers["Queue.Declare"] = declared if brokers else refused

    brokers.script = script

    async def serve(_) -> None:
        pass

    _, changes = await linked(address, serve, topology=Topology(queues=(Queue("q"),)))
    assert isinstance(changes[0][1].error, EntityNotFound)


async def test_errors_of_a_loss_count_as_one_also_in_groups_and_any_other_ends_the_loop(
    brokers, address, autojump_clock
) -> None:
    async def fail(error) -> None:
        raise error

    async def serve(_) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, PublishUnconfirmed("a"))
            nursery.start_soon(fail, PublishUnconfirmed("b") if len(brokers) < 3 else ZeroDivisionError())

    changes = []
    with pytest.raises(ExceptionGroup) as group:
        await stay_connected(address, serve, on_change=changes.append)
    assert group.group_contains(ZeroDivisionError, depth=1)
    assert [isinstance(state.error, PublishUnconfirmed) for state in changes if not state.connected] == [True, True]


async def test_files_that_cannot_be_used_end_the_loop_at_first_and_count_as_a_loss_later(
    brokers, address, autojump_clock
) -> None:
    password = Path(address.password_file)

    async def serve(connection) -> None:
        password.chmod(0o644)  # noqa: ASYNC240
        connection.abort(BrokerConnectionLost("a test"))
        await trio.sleep_forever()

    changes = []

    def change(state) -> None:
        changes.append(state)
        if len(changes) == 3:
            password.unlink()
            password.mkdir()
        if len(changes) == 4:
            raise KeyError

    with pytest.raises(KeyError):
        await stay_connected(address, serve, on_change=change)
    assert [type(state.error).__name__ for state in changes[1:]] == [
        "BrokerConnectionLost",
        "ConfigError",
        "ConfigError",
    ]
    with pytest.raises(ConfigError, match="is not a file"):
        await stay_connected(address, serve)


async def test_a_password_that_is_no_text_is_refused_with_its_place(brokers, address, autojump_clock) -> None:
    Path(address.password_file).write_bytes(b"\xff\xfe")  # noqa: ASYNC240
    with pytest.raises(ConfigError, match=r"password_file .* cannot be read"):
        async with open_connection(address):
            pass


# --- reaching a broker ----------------------------------------------------------------------------------------------


async def test_a_host_that_there_is_not_and_a_port_where_none_listens_are_named(address) -> None:
    with pytest.raises(
        BrokerUnreachable, match=r"cannot connect to amqp://127.0.0.1:\d+: no process listens on that port"
    ):
        async with open_connection(evolve(address, port=free_port())):
            pass
    nowhere = BrokerAddress("nowhere.invalid", 5671, secure=True)
    with pytest.raises(BrokerUnreachable, match=r"there is no host nowhere.invalid"):
        async with open_connection(nowhere):
            pass


async def test_no_password_goes_to_a_localhost_that_is_not_loopback(address, monkeypatch) -> None:
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    monkeypatch.setattr(handshake, "is_loopback", lambda peer: peer != "127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match="which is not loopback: no password goes there in the clear"):
            async with open_connection(evolve(address, port=port)):
                pass
        async with await listener.accept() as accepted:
            assert await accepted.receive_some() == b""


async def test_a_broker_that_resets_the_connection_during_the_log_in_is_named(address) -> None:
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def reset() -> None:
        async with await listener.accept() as stream:
            await stream.receive_some()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(reset)
        with pytest.raises(
            BrokerUnreachable, match=r"cannot connect to amqp://127.0.0.1:\d+: Connection reset by peer"
        ):
            async with open_connection(evolve(address, port=listener.socket.getsockname()[1])):
                pass


def test_what_names_a_broker_and_its_errors_needs_no_codec() -> None:
    code = (
        "import sys, hearth.amqp.address, hearth.amqp.errors, hearth.amqp.messages, hearth.amqp.topology;"
        "print('pamqp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
