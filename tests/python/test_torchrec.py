"""State dicts of TorchRec's sharded modules as DTensors and back, in the same memory (T7): hand-made ones, and TorchRec's own."""

import os
from pathlib import Path

import pytest
from torchrun import expect_all_well

TORCHREC = Path(__file__).parents[2] / "build" / "torchrec"  # where scripts/setup_torchrec puts it


@pytest.mark.parametrize("parts", ["hand_made,without_messages", "other_layouts,nested,bad_input"])
def test_four_processes(parts, tmp_path):
    expect_all_well("torchrec_program.py", 4, parts, tmp_path)


@pytest.mark.skipif(
    not (TORCHREC / ".installed").is_file(), reason="TorchRec is not there: scripts/setup_torchrec installs it"
)
def test_modules_of_torchrec(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TORCHREC)]).strip(os.pathsep)
    )
    expect_all_well("torchrec_program.py", 4, "modules,keyed_jagged", tmp_path)
