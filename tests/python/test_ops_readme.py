"""Each example in ops/README.md is code of the file that it names, and ops/ registers in one order."""

import re
from pathlib import Path

import pytest

OPS = Path(__file__).parents[2] / "ops"
EXAMPLES = re.findall(r"`([^`]+)` in `([^`]+)`", (OPS / "README.md").read_text())


def test_every_way_has_an_example():
    assert len(EXAMPLES) >= 12


@pytest.mark.parametrize("code, file", EXAMPLES)
def test_examples_exist(code, file):
    pattern = r"\s*".join(re.escape(part) for part in code.replace("...", " ... ").split())
    assert re.search(pattern.replace(re.escape("..."), ".*?"), (OPS / file).read_text(), re.DOTALL)


def test_one_static_initializer_of_each_library_registers_everything():
    """Static initializers of several files would run in the order of the object files. Lookups are in a library of their own."""
    macro = re.compile(r"^TORCH_LIBRARY", re.MULTILINE)
    sources = list(OPS.rglob("*.cpp"))
    assert len(sources) > 50
    assert [path.name for path in sources if macro.search(path.read_text())] == []
    initializers = [
        path.name for path in sources if re.search(r"maybe_unused.*const bool registered", path.read_text())
    ]
    assert sorted(initializers) == ["lookup_operators.cpp", "register.cpp"]
