"""The pages of docs/ and the README: their programs run and print what the pages say, and what they name exists."""

import re

import pytest
from pages import PAGES, ROOT, assert_same_text, name_of, read_page, run_command, run_program

READ = {name_of(path): read_page(path) for path in PAGES}
PROGRAMS = [(name, i) for name, page in READ.items() for i in range(len(page.programs))]
SESSIONS = [(name, i) for name, page in READ.items() for i in range(len(page.sessions))]
FRAGMENTS = (
    2  # blocks that are not run: TorchRec's module in torchrec_state_dicts.md, what api/python.md takes for granted
)


@pytest.mark.parametrize("name, i", PROGRAMS)
def test_the_blocks_of_a_page_run(name, i, tmp_path, monkeypatch):
    page = READ[name]
    monkeypatch.chdir(tmp_path)
    run_program(page.programs[i], page.path, tmp_path, monkeypatch)


@pytest.mark.parametrize("name, i", SESSIONS)
def test_the_commands_of_a_page_print_what_it_shows(name, i, tmp_path):
    page = READ[name]
    for file, text in page.files.items():
        (tmp_path / file).write_text(text)
    command, expected = page.sessions[i]
    assert_same_text(run_command(command, tmp_path), expected)


def test_every_file_of_a_page_is_run():
    for name, page in READ.items():
        for file in page.files:
            assert any(file in command for command, _ in page.sessions), f"{name}: no command runs {file}"


def test_blocks_that_do_not_run_are_few():
    assert sum(page.n_fragments for page in READ.values()) <= FRAGMENTS


@pytest.mark.parametrize("name", READ)
def test_files_that_a_page_names_exist(name):
    """`docs/x.md`, `examples/x.py` and the like, in code spans and links."""
    page = READ[name]
    rooms = "ops|docs|text|plans|python|kernels|runtime|scripts|examples|wrappers|pictures|placements|benchmarks|tests"
    named = set(re.findall(rf"`((?:{rooms})/[\w/.-]+\.\w+)(?=[` ])", page.path.read_text()))
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []
