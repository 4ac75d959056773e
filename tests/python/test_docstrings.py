"""Every public name says what it is, shows an example that runs, and stands on one page of the reference."""

import inspect
import re
import sys

import pytest
from docstring_examples import NEED_PROCESSES, complaint, examples_of, public_names, run_examples
from pages import ROOT, StreamOfThread
from torchrun import forked_ranks

from shardwise.testing import run_ranks

NAMES = public_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert examples_of(NAMES[name]), f"{name} has no example in its docstring"


@pytest.mark.parametrize("name", sorted(set(NAMES) - NEED_PROCESSES))
def test_examples_print_what_they_say(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stream = StreamOfThread(sys.stdout)
    monkeypatch.setattr(sys, "stdout", stream)

    def body(rank):
        stream.begin()
        return list(run_examples(examples_of(NAMES[name])))

    outputs = run_ranks(4, body, timeout=60)[0]
    assert [each for each in (complaint(name, *pair) for pair in outputs) if each] == []


def test_examples_that_need_processes():
    assert set(NAMES) >= NEED_PROCESSES
    finished = forked_ranks("docstring_examples.py", 4)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""


def test_the_reference_has_every_public_name_once():
    pages = {path.name: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
    entries = re.findall(r"^\.\. auto(?:class|function):: (.*)$", "\n".join(pages.values()), re.MULTILINE)
    wanted = [name for name in NAMES if not name.startswith("shardwise.DTensor.")]
    assert sorted(entries) == sorted(wanted)
    linked = set(re.findall(r"^(\w+)$", pages["python.md"], re.MULTILINE))
    assert linked >= {name.removesuffix(".md") for name in pages} - {"python", "cpp"}


def test_public_methods_are_documented():
    """Members that a class of ours defines; what it has of its bases these document."""
    without = []
    for name, value in NAMES.items():
        if inspect.isclass(value):
            for member, function in vars(value).items():
                if not member.startswith("_") and callable(function) and not inspect.getdoc(getattr(value, member)):
                    without.append(f"{name}.{member}")
    assert without == []
