"""What waits in a connection is counted as it changes, and a halt is found behind what only looks like one."""

from __future__ import annotations

from hearth.protocol import server
from hearth.protocol.server import MOST_TRIED, ServerProtocol

HALT = b'{"jsonrpc":"2.0","id":1,"method":"halt","params":{}}\n'


def test_what_waits_is_counted_without_looking_at_it_again():
    protocol = ServerProtocol()
    protocol.feed(b"1\n" * 1000)
    protocol.feed_unreadable("a text")
    protocol.feed(b'{"half')
    assert protocol.unread_bytes == 2000 + 128 + 6
    protocol.feed(b'":1}\n[' + HALT.strip() + b',{"jsonrpc":"2.0","id":2,"method":"tool.list"}]\n')
    assert [call.method for call in protocol.overtaking()] == ["halt"]
    list(protocol.waiting())
    assert protocol.unread_bytes == 0


def test_a_halt_overtakes_one_that_cannot_be_read():
    protocol = ServerProtocol()
    protocol.feed(b'{"id":3,"method":"tool.list"}\n{"method":"halt"}\n' + HALT)
    assert [call.id for call in protocol.overtaking()] == [1]


def test_few_texts_that_only_look_like_a_halt_are_read_in_one_search(monkeypatch):
    read, load = [], server.load
    monkeypatch.setattr(server, "load", lambda document: read.append(document) or load(document))
    protocol = ServerProtocol()
    protocol.feed(b'["halt"]\n' * 40 + HALT)
    found, searches = [], 0
    while not found:
        read.clear()
        found = protocol.overtaking()
        assert len(read) <= MOST_TRIED + 1
        searches += 1
    assert ([call.method for call in found], searches) == (["halt"], 3)


def test_a_halt_behind_nothing_is_taken_out_of_turn_if_that_is_asked_for():
    protocol = ServerProtocol()
    protocol.feed(HALT)
    assert protocol.overtaking() == []
    assert [call.method for call in protocol.overtaking(alone=True)] == ["halt"]
