"""Sphinx builds the pages without a warning, where scripts/docs has installed it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "furo", "breathe", "sphinx_copybutton"):
        pytest.importorskip(module, reason="scripts/docs installs it")
    package = ROOT / "build" / "python"
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"),
            *("--doctree-dir", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "html")),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    reference = (tmp_path / "html" / "api" / "placements.html").read_text()
    assert "shardwise.EnumerableShard" in reference and "ShardMetadata" in reference
