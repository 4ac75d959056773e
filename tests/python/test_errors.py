"""The caller's mistakes: exception type, words, and that every rank raises and stays in step."""

import re

import error_catalogue
import error_sites
import pytest
from error_catalogue import (
    INTERNALS,
    alike,
    is_well_formed,
    message_of,
    of_processes,
    provoke,
    sections,
)

CASES = [
    pytest.param(section.SETUP, case, id=f"{name}: {case.title}")
    for name, section in sections()
    for case in section.CASES
    if not case.of_processes
]


def check_words(case, messages):
    for message in messages:
        assert is_well_formed(message) != case.in_torchs_words, message
        assert INTERNALS.search(message) is None or case.in_torchs_words, message


@pytest.mark.parametrize("setup, case", CASES)
def test_every_rank_gets_the_error(setup, case):
    outcomes = provoke(setup, case)
    errors = [error for error, _ in outcomes]
    assert [type(error) for error in errors] == [case.error_on(rank) for rank in range(2)], errors
    messages = [message_of(error) for error in errors if error is not None]
    assert case.is_of_rank or len(set(map(alike, messages))) == 1, messages
    check_words(case, messages)
    assert all(in_step for _, in_step in outcomes)


def test_two_processes_get_the_errors():
    complaints, messages = of_processes()
    assert complaints == []
    for name, section in sections():
        for case in section.CASES:
            if case.of_processes:
                check_words(case, [messages[f"{name}: {case.title}"][1]])


def test_every_place_that_makes_a_message_has_a_case_or_a_reason():
    found = error_sites.sites()
    provoked = error_sites.covered(found, error_catalogue.page())
    left = [site for site in found if site not in provoked]
    assert [site for site in left if error_sites.elsewhere(site) is None] == []
    texts = error_sites.cpp_test_texts()
    for why, parts in error_sites.ELSEWHERE.items():
        for part in parts:
            assert any(site.is_meant_by(part) for site in left), part  # no case has it, and it is still there
            assert why != error_sites.IN_CPP or any(part in text for text in texts), part


def test_titles_differ():
    for name, section in sections():
        titles = [case.title for case in section.CASES]
        assert len(titles) == len(set(titles)), name


def test_the_page_has_every_case():
    page = error_catalogue.page()
    for _, section in sections():
        part = page.partition(f"\n## {section.TITLE}\n")[2].partition("\n## ")[0]
        titles = [case.title[0].upper() + case.title[1:] for case in section.CASES]
        assert re.findall(r"^### (.*)$", part, re.MULTILINE) == titles
        assert len(error_sites.messages(part)) == len(titles)
