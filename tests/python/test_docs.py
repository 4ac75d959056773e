"""The programs of docs/ run: all blocks of a page, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def program(page):
    """The indented blocks of a page."""
    return "\n".join(line[4:] for line in page.read_text().splitlines() if line.startswith("    ") or not line)


@pytest.mark.parametrize("name", ["distributed_embeddings_layer.md"])
def test_the_blocks_of_a_page_are_a_program(tmp_path, name):
    text = program(DOCS / name)
    assert re.search(r"^import shardwise as sw$", text, re.MULTILINE)
    (tmp_path / "page.py").write_text(text)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    result = subprocess.run([*launcher, tmp_path / "page.py"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("3 tables") == 4
