"""The registry of declared AgentCards on a real directory: what is kept and whose, what is bounded, what is skipped."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import time

import pytest
import trio

from hearth.actors.bridges.mcp import card_registry
from hearth.actors.bridges.mcp.card_registry import CardRefused, CardRegistry
from hearth.errors import QueueFull
from hearth.policy.memory import MemoryBudget

ALICE, BOB = "uid:1000", "uid:1001"
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def agent_id(number):
    return "01HZQK3P8EMXR9V7T5N2W4" + "".join(ALPHABET[number // 32**power % 32] for power in (3, 2, 1, 0))


def card(number=0, **more):
    return {
        "agent_id": agent_id(number),
        "name": f"Agent {number}",
        "version": "1.0.0",
        "capabilities": [{"id": "tool.something"}],
        "endpoint": {"protocol": "https", "url": "https://agents.example/a"},
        **more,
    }


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state" / "agentcards"


@pytest.fixture
def registry(directory):
    return CardRegistry(directory)


async def test_a_declared_card_is_there_for_the_next_process_with_who_declared_it_and_when(registry, directory):
    before = time.time()
    declared = await registry.declare(card(1, metadata={"ünicode": [1, 2.5, None]}), ALICE)
    found = await CardRegistry(directory).contents()
    assert found.cards == {agent_id(1): declared}
    assert found.skipped == {}
    assert (declared.declared_by, declared.agent_id) == (ALICE, agent_id(1))
    assert declared.declared_at.startswith(time.strftime("%Y-%m-%dT%H:", time.gmtime(before)))
    assert (await CardRegistry(directory).contents()).cards[agent_id(1)].card == card(
        1, metadata={"ünicode": [1, 2.5, None]}
    )


async def test_cards_are_charged_to_who_declared_them_for_as_long_as_they_are_there(directory):
    memory = MemoryBudget(each=1 << 20)
    registry = CardRegistry(directory, memory.for_principal)
    await registry.declare(card(1, metadata={"many": [0] * 5000}), ALICE)
    alice, bob = memory.for_principal(ALICE), memory.for_principal(BOB)
    kept = alice.used
    assert kept > 5000 * 100
    with pytest.raises(QueueFull) as caught:
        await registry.declare(card(2, metadata={"many": [0] * 5000}), ALICE)
    assert caught.value.data["limit"] == "max_retained_bytes"
    assert (await registry.contents()).cards.keys() == {agent_id(1)}, "and nothing was written"
    await registry.declare(card(2, metadata={"many": [0] * 5000}), BOB)
    assert (alice.used, bob.used) == (kept, kept)
    # The daemon is started again.
    again = MemoryBudget(each=1 << 20)
    other = CardRegistry(directory, again.for_principal)
    await other.contents()
    assert again.used == memory.used == 2 * kept
    (directory / f"{agent_id(1)}.json").unlink()
    await other.contents()
    assert again.used == kept


async def test_only_their_owner_can_read_the_files(registry, directory):
    await registry.declare(card(), ALICE)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}
    assert modes == {"agentcards": 0o700, f"{agent_id(0)}.json": 0o600}


async def test_an_empty_registry_makes_no_directory(registry, directory):
    assert await registry.contents() == card_registry.RegistryContents()
    assert not directory.exists()


async def test_the_declarer_of_a_card_may_change_it_and_no_other(registry, directory):
    await registry.declare(card(name="First"), ALICE)
    await registry.declare(card(name="Second"), ALICE)
    with pytest.raises(CardRefused, match="declared by another principal"):
        await registry.declare(card(name="Third"), BOB)
    with pytest.raises(CardRefused, match="declared by another principal"):
        await CardRegistry(directory).declare(card(name="Third"), BOB)
    contents = await registry.contents()
    assert contents.cards[agent_id(0)].card["name"] == "Second"
    assert [path.name for path in directory.iterdir()] == [f"{agent_id(0)}.json"]


async def test_the_same_card_again_changes_nothing(registry, directory):
    first = await registry.declare(card(), ALICE)
    status = (directory / f"{agent_id(0)}.json").stat()
    assert await registry.declare(card(), ALICE) == first
    assert (directory / f"{agent_id(0)}.json").stat().st_mtime_ns == status.st_mtime_ns


async def test_a_card_is_bounded_in_size(registry, monkeypatch):
    monkeypatch.setattr(card_registry, "MAX_CARD_BYTES", 1000)
    fits = 1000 - len(card_registry.encoded(card(metadata={"x": ""})))
    await registry.declare(card(metadata={"x": "y" * fits}), ALICE)
    with pytest.raises(CardRefused, match="has 1001 bytes as JSON, and 1000 are the most"):
        await registry.declare(card(metadata={"x": "y" * (fits + 1)}), ALICE)


@pytest.mark.parametrize("strange", [float("nan"), {1, 2}, "\ud800"], ids=["NaN", "a set", "half a surrogate pair"])
async def test_what_json_cannot_say_is_refused(registry, directory, strange):
    with pytest.raises(CardRefused, match="cannot be written as JSON"):
        await registry.declare(card(metadata={"x": strange}), ALICE)
    assert not directory.exists()


async def test_no_principal_fills_the_registry_alone_and_all_together_do(registry, monkeypatch):
    monkeypatch.setattr(card_registry, "MAX_CARDS", 8)
    for number in range(2):
        await registry.declare(card(number), ALICE)
    with pytest.raises(CardRefused, match=r"your share of the registry is full \(2 cards"):
        await registry.declare(card(2), ALICE)
    await registry.declare(card(1, name="one that is there is no more"), ALICE)
    for number, by in enumerate((BOB, BOB, "uid:2", "uid:2", "uid:3", "uid:3"), start=10):
        await registry.declare(card(number), by)
    with pytest.raises(CardRefused, match=r"the registry is full \(8 cards"):
        await registry.declare(card(30), "uid:4")
    assert len((await registry.contents()).cards) == 8


async def test_the_bytes_of_all_cards_together_are_bounded(registry, monkeypatch):
    size = len(card_registry.encoded(card()))
    monkeypatch.setattr(card_registry, "MAX_TOTAL_BYTES", 8 * size)
    await registry.declare(card(0), ALICE)
    await registry.declare(card(1), ALICE)
    with pytest.raises(CardRefused, match=f"your share of the registry is full .64 cards, {2 * size} bytes"):
        await registry.declare(card(2), ALICE)


async def test_files_that_the_operator_put_there_beyond_the_bound_are_named(registry, directory, monkeypatch):
    for number in range(4):
        await registry.declare(card(number), f"uid:{number}")
    monkeypatch.setattr(card_registry, "MAX_CARDS", 3)
    contents = await CardRegistry(directory).contents()
    assert list(contents.cards) == [agent_id(number) for number in range(3)]
    assert contents.skipped == {f"{agent_id(3)}.json": f"beyond the 3 cards or {4 << 20} bytes that the registry holds"}


def declared(**more):
    document = {"version": 1, "declared_by": ALICE, "declared_at": "2026-04-23T00:00:00.000Z", "card": card(5)}
    return json.dumps({**document, **more}).encode()


LONG = (
    "the card has 131290 bytes as JSON, and 131072 are the most here: leave schemas out, or put what is long behind a "
    "link"
)
FOREIGN = {
    "torn": (declared()[:-20], "torn, or not JSON"),
    "nothing in it": (b"", "torn, or not JSON"),
    "nested beyond all reason": (b"[" * 9000, "torn, or not JSON"),
    "something else": (b'["agents"]', "not a declared card that this release knows"),
    "of a later release": (declared(version=2), "not a declared card that this release knows"),
    "nobody's": (declared(declared_by=None), "no card in it, or no principal that declared it"),
    "without a card": (declared(card="{}"), "no card in it, or no principal that declared it"),
    "invalid": (declared(card=card(5, version="1")), 'not a valid AgentCard: /version: "1" is no semantic version'),
    "another agent's": (declared(card=card(6)), f"the card of another agent ({agent_id(6)})"),
    "too long": (declared(card=card(5, name="x")) + b" " * (200 << 10), "longer than 135168 bytes"),
    "with a card too long": (
        declared(card=card(5, metadata={"x": "y" * (128 << 10)})),
        LONG,
    ),
}


@pytest.mark.parametrize(("content", "reason"), FOREIGN.values(), ids=FOREIGN)
async def test_a_torn_or_foreign_file_is_skipped_and_named_and_never_written_over(registry, directory, content, reason):
    await registry.declare(card(1), ALICE)
    path = directory / f"{agent_id(5)}.json"
    path.write_bytes(content)
    contents = await registry.contents()
    assert (list(contents.cards), contents.skipped) == ([agent_id(1)], {path.name: reason})
    with pytest.raises(CardRefused) as refused:
        await registry.declare(card(5), ALICE)
    assert str(refused.value) == f"agent_id {agent_id(5)} is taken by a file of the registry: {reason}"
    assert path.read_bytes() == content


async def test_what_is_no_file_of_ours_at_all_is_skipped(registry, directory, tmp_path):
    await registry.declare(card(1), ALICE)
    (tmp_path / "elsewhere.json").write_bytes(declared())
    (directory / f"{agent_id(5)}.json").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(directory / f"{agent_id(6)}.json")
    (directory / "notes.txt").write_text("mine")
    with trio.fail_after(60):
        contents = await registry.contents()
    assert list(contents.cards) == [agent_id(1)]
    assert contents.skipped == {
        f"{agent_id(5)}.json": "not a regular file",
        f"{agent_id(6)}.json": "not a regular file",
        "notes.txt": "its name is no agent_id with .json behind it",
    }


async def test_a_file_that_was_put_right_is_read_again(registry, directory):
    await registry.declare(card(1), ALICE)
    path = directory / f"{agent_id(5)}.json"
    path.write_bytes(declared()[:-20])
    assert path.name in (await registry.contents()).skipped
    path.write_bytes(declared())
    assert agent_id(5) in (await registry.contents()).cards
    path.unlink()
    assert list((await registry.contents()).cards) == [agent_id(1)]


async def test_a_draft_of_a_process_that_crashed_is_deleted_when_no_process_can_be_writing_it(registry, directory):
    await registry.declare(card(1), ALICE)
    old, new = directory / ".a.json.1.new", directory / ".b.json.2.new"
    for draft in (old, new):
        draft.write_bytes(b"{")
    os.utime(old, (time.time() - 7200,) * 2)
    contents = await registry.contents()
    assert contents.skipped == {}
    assert (old.exists(), new.exists()) == (False, True)


async def test_a_directory_that_others_may_write_into_is_not_used(registry, directory):
    await registry.declare(card(1), ALICE)
    directory.chmod(0o777)
    with pytest.raises(CardRefused, match="must belong to this process's user, and no other user may write there"):
        await registry.contents()
    with pytest.raises(CardRefused, match="must belong to this process's user, and no other user may write there"):
        await registry.declare(card(2), ALICE)


async def test_a_registry_that_cannot_be_read_or_written_says_where(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CardRefused, match=f"cannot be read: Not a directory; the operator sees to {tmp_path}/file"):
        await CardRegistry(tmp_path / "file").contents()
    registry = CardRegistry(tmp_path / "cards")
    (tmp_path / "cards").mkdir(mode=0o700)
    (tmp_path / "cards" / f".{agent_id(1)}.json.{os.getpid()}.new").mkdir()
    with pytest.raises(CardRefused, match="cannot be written: Is a directory; the operator sees to"):
        await registry.declare(card(1), ALICE)


class Behind(CardRegistry):
    """A registry in which something happens each time after it has looked, and before it writes."""

    def __init__(self, directory, *happenings):
        super().__init__(directory)
        self.happenings = list(happenings)

    def _read_directory(self):
        contents = super()._read_directory()
        if self.happenings:
            trio.from_thread.run(*self.happenings.pop(0))
        return contents


async def test_a_principal_whose_two_processes_declare_one_agent_at_the_same_moment_is_taken_at_its_word(directory):
    other = CardRegistry(directory)
    declared = await Behind(directory, (other.declare, card(1), ALICE)).declare(card(1), ALICE)
    assert (await other.contents()).cards == {agent_id(1): declared}
    changed = card(2, name="Agent two")
    declared = await Behind(directory, (other.declare, card(2), ALICE)).declare(changed, ALICE)
    assert declared.card == changed
    assert (await other.contents()).cards[agent_id(2)] == declared


async def test_an_agent_that_another_principal_declares_at_the_same_moment_is_that_principals(directory):
    other = CardRegistry(directory)
    with pytest.raises(CardRefused, match="declared by another principal, who alone may change its card"):
        await Behind(directory, (other.declare, card(1), BOB)).declare(card(1), ALICE)
    assert (await other.contents()).cards[agent_id(1)].declared_by == BOB


async def test_a_file_beyond_those_that_are_looked_at_is_never_written_over(registry, directory, monkeypatch):
    await registry.declare(card(1), ALICE)
    monkeypatch.setattr(card_registry, "_MAX_ENTRIES", 0)
    with pytest.raises(CardRefused, match="taken by a file of the registry: more files are in the registry than are"):
        await registry.declare(card(1, name="Another"), ALICE)


def declare_many(directory, barrier, answers, by):
    async def main():
        registry = CardRegistry(directory)
        taken = 0
        for number in range(20):
            barrier.wait(60)
            try:
                await registry.declare(card(number, name=by), by)
                taken += 1
            except CardRefused:
                continue
        return taken

    answers.put(trio.run(main))


@pytest.mark.slow
def test_two_processes_that_declare_one_agent_at_the_same_moment_do_not_overwrite_each_other(directory):
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=declare_many, args=(directory, barrier, answers, by)) for by in (ALICE, BOB)]
    for process in processes:
        process.start()
    taken = [answers.get(timeout=50) for _ in processes]
    for process in processes:
        process.join(60)
    contents = trio.run(CardRegistry(directory).contents)
    assert sum(taken) == len(contents.cards) == 20, "each agent was declared once"
    assert all(found.card["name"] == found.declared_by for found in contents.cards.values())
