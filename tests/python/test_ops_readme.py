"""Each example in ops/README.md is code of the file that it names."""

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
