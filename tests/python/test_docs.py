"""The pages of docs/ and the README: their programs run and print what the pages say, and what they name exists."""

import importlib
import re

import pytest
from pages import PAGES, ROOT, assert_same_text, name_of, printed_by, read_page, run_program

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
    assert_same_text(printed_by(command, tmp_path), expected)


def test_every_file_of_a_page_is_run():
    for name, page in READ.items():
        for file in page.files:
            assert any(file in command for command, _ in page.sessions), f"{name}: no command runs {file}"


@pytest.mark.parametrize("name", READ)
def test_code_is_fenced(name):
    """```python runs; an indented block would not."""
    assert READ[name].n_indented == 0


def test_blocks_that_do_not_run_are_few():
    assert sum(page.n_fragments for page in READ.values()) <= FRAGMENTS


@pytest.mark.parametrize("name", READ)
def test_files_that_a_page_names_exist(name):
    """`docs/x.md`, `examples/x.py` and the like, in code spans and links."""
    page = READ[name]
    rooms = "ops|docs|text|plans|python|kernels|runtime|scripts|examples|wrappers|pictures|placements|benchmarks|tests"
    named = set(re.findall(rf"`((?:{rooms})/[\w/.-]+\.\w+)(?=[` ])", page.path.read_text()))
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []


TORCHS_MODULES = {
    "torch.distributed.tensor": "shardwise",
    "torch.distributed.tensor.device_mesh": "shardwise.device_mesh",
    "torch.distributed.tensor.parallel": "shardwise.parallel",
    "torch.distributed.tensor.experimental": "shardwise.experimental",
    "torch.distributed.tensor.debug": "shardwise.debug",
    "torch.distributed.tensor.placement_types": "shardwise.placement_types",
}
CLASSES_WITH_MEMBERS = ("DTensor", "DeviceMesh", "Shard", "Replicate", "Partial", "Placement", "CommDebugMode")


def torchs_names():
    """(torch's object that has the name, ours, the name), for every public name and every public member of the main classes."""
    for there, here in TORCHS_MODULES.items():
        theirs, ours = importlib.import_module(there), importlib.import_module(here)
        for name in theirs.__all__:
            yield theirs, ours, name
            if name in CLASSES_WITH_MEMBERS:
                for member in vars(getattr(theirs, name)):
                    if not member.startswith("_"):
                        yield getattr(theirs, name), getattr(ours, name), member


def test_every_name_of_torch_is_here_and_on_the_page_of_migration():
    page = (ROOT / "docs" / "migration.md").read_text()
    names = list(torchs_names())
    assert len(names) > 70
    assert [f"{theirs.__name__}.{name}" for theirs, ours, name in names if not hasattr(ours, name)] == []
    assert [name for _, _, name in names if f"`{name}`" not in page] == []
    here = re.findall(r"`(shardwise\.[\w.]+)`", page)
    modules = [(name.rpartition(".")[0], name.rpartition(".")[2]) for name in here]
    assert [name for module, name in modules if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("name", READ)
def test_links_have_words_and_lead_somewhere(name):
    """GitHub shows nothing of a link without words, which Sphinx would fill in."""
    page = READ[name].path
    links = re.findall(
        r"\[([^\]]*)\]\(([^)\s]+)\)",
        re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL),
    )
    assert [target for words, target in links if not words] == []
    inside = [target.partition("#")[0] for _, target in links if not re.match(r"https?:", target)]
    assert [target for target in inside if target and not (page.parent / target).exists()] == []


CPP_PROGRAMS = (
    "examples/first_program.cpp",
    "examples/parallel_transformer.cpp",
    "tests/packaging/consumer/main.cpp",
    "tests/packaging/consumer/CMakeLists.txt",
)


def stands_in(block, source):
    """True where the lines of `block` are lines of `source`, in their order, whatever their indentation."""
    lines = (line.strip() for line in source.splitlines())
    return all(line.strip() in lines for line in block if line.strip())


def test_the_code_of_the_cpp_page_stands_in_programs():
    """Other tests compile and run them."""
    blocks = re.findall(
        r"^```(?:cpp|cmake)\n(.*?)^```", (ROOT / "docs" / "cpp.md").read_text(), re.MULTILINE | re.DOTALL
    )
    sources = [(ROOT / name).read_text() for name in CPP_PROGRAMS]
    assert len(blocks) > 5
    assert [block for block in blocks if not any(stands_in(block.splitlines(), source) for source in sources)] == []
