"""No sentence without a test, no row without a reason, no mark for a sentence that is not there."""

from __future__ import annotations

import re

import pytest
from conformance.card_sentences import CARD
from conformance.hcp_sentences import HCP
from conformance.pages import conformance_page, generate
from conformance.sentences import ALL, DESIGN, DRAFT


def test_the_list_of_sentences_is_well_formed() -> None:
    assert len(set(ALL)) == len(ALL)
    for sentence in DRAFT:
        assert sentence.text == " ".join(sentence.text.split())
        if sentence.level in ("is", "REQUIRED"):
            continue
        assert sentence.level in ("MUST", "MUST NOT", "SHOULD", "MAY")
        # One sentence of section 12 explains an entry of its list of MUSTs.
        assert sentence.level in sentence.text or sentence.text.startswith("The set of registered tools is fixed")


def test_the_list_of_the_cards_sentences_is_well_formed() -> None:
    assert len(CARD) > 80
    for sentence in CARD:
        assert sentence.section.startswith("card ")
        assert sentence.text == " ".join(sentence.text.split())
        assert sentence.level in (
            "MUST",
            "MUST NOT",
            "SHOULD",
            "MAY",
            "RECOMMENDED",
            "OPTIONAL",
            "is",
            "REQUIRED",
            "PROHIBITED",
        )
        assert sentence.level == "is" or sentence.level in sentence.text or "REQUIRED" in sentence.text


def test_the_list_of_hcps_sentences_is_well_formed() -> None:
    assert len(HCP) > 200
    for sentence in HCP:
        assert sentence.section.startswith(("hcp L1 ", "hcp L2 ", "hcp L3 ", "hcp L4 "))
        assert sentence.text == " ".join(sentence.text.split())
        assert sentence.level in ("MUST", "MUST NOT", "SHOULD", "MAY", "OPTIONAL", "is")
        assert sentence.level in ("is", "OPTIONAL") or sentence.level in sentence.text
        assert sentence.level != "is" or "MUST" not in sentence.text


@pytest.mark.parametrize("sentence", ALL, ids=lambda sentence: f"{sentence.section} {sentence.level}")
def test_every_sentence_has_a_test_or_a_reason(sentence) -> None:
    proved = sentence in conformance_page.collect()
    assert proved or sentence in conformance_page.NOT_DONE


def test_what_is_proved_is_not_excused_but_where_it_is_done_in_part() -> None:
    both = {sentence.section for sentence in conformance_page.NOT_DONE if sentence in conformance_page.collect()}
    assert both == {
        "1.1",
        "3.3",
        "3.4",
        "7",
        "12",
        "13",
        "card 1.1",
        "card 2.4.1",
        "card 2.4.2",
        "card 2.4.3",
        "hcp L3 Data Classification",
    }


def test_nothing_that_the_drafts_demand_is_left_undone() -> None:
    proved = conformance_page.collect()
    drafts = [sentence for sentence in conformance_page.NOT_DONE if sentence not in HCP and sentence not in proved]
    assert {sentence.level for sentence in drafts} <= {"MAY", "SHOULD"}
    pages = [sentence for sentence in conformance_page.NOT_DONE if sentence in HCP]
    assert {sentence.level for sentence in pages} <= {"MAY", "SHOULD", "is"}


@pytest.mark.spec(
    "1.1",
    "REQUIRED",
    'A conformant server is one that implements the methods marked "Required" in Section 3 and obeys the framing, '
    "error, and lifecycle rules in Section 2 and Section 5.",
)
def test_1_1_every_rule_of_sections_2_3_and_5_that_is_no_may_is_proved() -> None:
    rules = [sentence for sentence in DRAFT if sentence.section[0] in "235" and sentence.level != "MAY"]
    assert len(rules) > 40
    in_part = [sentence.text for sentence in rules if sentence in conformance_page.NOT_DONE]
    assert [text[:30] for text in in_part] == ["0 | safe | Pure read; no side ", "If any step fails validation, "]
    assert all(conformance_page.collect()[sentence] for sentence in rules)


def test_every_rule_of_the_cards_validation_is_proved() -> None:
    rules = [sentence for sentence in CARD if sentence.section == "card 5" and sentence.text[0].isdigit()]
    assert {sentence.text.partition(".")[0] for sentence in rules} == {str(number) for number in range(1, 11)}
    assert all(conformance_page.collect()[sentence] for sentence in rules)


def test_every_decision_has_its_test() -> None:
    assert all(sentence in conformance_page.collect() for sentence in DESIGN)


def test_the_tests_of_this_folder_are_named_by_the_section_they_prove() -> None:
    for sentence, proofs in conformance_page.collect().items():
        for proof in proofs:
            if not proof.file.startswith("tests/conformance/") or sentence in DESIGN:
                continue
            named = re.match(r"test_(\d+)(?:_(\d+))?_", proof.name)
            assert named, proof
            marked = conformance_page.collect().items()
            sections = {other.section for other, others in marked if proof in others and other in DRAFT}
            assert ".".join(part for part in named.groups() if part) in sections, proof


@pytest.mark.parametrize("page", generate.PAGES, ids=lambda path: path.name)
def test_the_generated_pages_are_up_to_date(page) -> None:
    assert page.read_text("utf-8") == generate.PAGES[page](), "run `make docs`"


def test_a_page_that_is_out_of_date_is_told_and_written(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {page: lambda: "new\n"})
    page.write_text("old\n")
    assert generate.main(["--check"]) == 1
    assert "page.md: is out of date" in capsys.readouterr().out
    assert page.read_text() == "old\n"
    assert generate.main([]) == 0
    assert page.read_text() == "new\n"
    assert generate.main(["--check"]) == 0
