"""Identifiers (draft §2.3): ULIDs, from the system's randomness."""

from __future__ import annotations

import re
import time

from ulid import ULID

from hearth._util.ids import new_id


def test_an_id_is_a_ulid_of_now() -> None:
    before = time.time() - 0.002
    made = ULID.from_str(new_id())
    assert before <= made.timestamp <= time.time() + 0.002


def test_an_id_has_at_most_64_bytes_of_the_drafts_alphabet() -> None:
    assert re.fullmatch(r"[0-9A-Za-z_-]{1,64}", new_id())


def test_ten_thousand_ids_differ_in_their_randomness() -> None:
    assert len({new_id()[10:] for _ in range(10_000)}) == 10_000
