"""`import shardwise` needs torch and numpy alone; a command or picture that needs another package names it and the extra that has it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import PACKAGE, ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

PROGRAM = """
import json, sys
from pathlib import Path

blocked = json.loads(sys.argv[1])
for name in blocked:
    sys.modules[name] = None  # its import is a ModuleNotFoundError
folder = Path(sys.argv[2])

import torch
import shardwise as sw
from command_line import finished_command
from shardwise._progress import check_progress
from shardwise.checkpoint import tensor_records
from shardwise.testing import run_ranks

def body(rank):
    x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[sw.Shard(0)])
    sw.debug.dump(folder / "dumps")
    return (x + x).sum().item()

found = {"sum": run_ranks(2, body)[0], "checksums": tensor_records.crc32.__module__}
(folder / "tables.json").write_text(json.dumps([{"name": "t", "n_rows": 100, "n_columns": 8}]))
move = ["--shape", "8x8", "--mesh", "2", "--from", "S0", "--to", "S1"]
show = ["show", "--shape", "8x8", "--mesh", "2", "--placements", "S0"]
for name, words in {
    "help": ["--help"],
    "show": show,
    "page": [*show, "--file", folder / "x.html"],
    "diff": ["diff", *move],
    "plan": ["plan", *move],
    "simulate": ["simulate", *move],
    "plan-embeddings": ["plan-embeddings", folder / "tables.json", "--ranks", "2"],
    "hang": ["hang", folder / "dumps"],
    "doctor": ["doctor", "--no-links"],
    "watch": ["watch", "--port", "0"],
}.items():
    done = finished_command(*words)
    found[name] = (done.returncode, done.stdout, done.stderr)
drawn = sw.debug.picture(sw.Layout((4,), (2,), [sw.Shard(0)]))
found["frame"] = drawn._repr_html_()
sw.debug.visualize_sharding(sw.Layout((4,), (2,), [sw.Shard(0)]), use_rich=True, file=folder / "x.txt")
try:
    check_progress(True)
except ModuleNotFoundError as error:
    found["progress"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    blocked = ["jinja2", "rich", "rich_argparse", "argcomplete", "tqdm", "starlette", "uvicorn", "zlib_ng"]
    paths = [str(PACKAGE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(blocked), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_operators_and_checkpoints_need_no_extra(found):
    assert (found["sum"], found["checksums"]) == (8, "zlib")


@pytest.mark.parametrize("command", ["help", "show", "diff", "plan", "simulate", "plan-embeddings", "hang"])
def test_commands_need_no_extra(found, command):
    status, out, errors = found[command]
    assert (status, errors) == (0, "") and len(out.splitlines()) > 1


def test_the_doctor_needs_no_extra(found):
    status, out, errors = found["doctor"]
    assert status in (0, 1) and errors == "" and "  shardwise" in out and out.splitlines()[-1].endswith("to note.")


@pytest.mark.parametrize("name, package, extra", [("page", "jinja2", "pages"), ("watch", "uvicorn", "watch")])
def test_what_needs_an_extra_names_it(found, name, package, extra):
    status, out, errors = found[name]
    assert status == 2 and out == "" and len(errors.splitlines()) == 1
    assert f"needs {package}, which is not installed" in errors and f"shardwise[{extra}]" in errors
    assert package in EXTRAS[extra]


def test_a_notebook_shows_the_drawing_where_the_page_cannot_be_made(found):
    assert found["frame"] is None


def test_a_progress_line_names_its_package(found):
    assert found["progress"].endswith("needs tqdm, which is not installed. pip install shardwise[progress]")
