"""An installed Shardwise serves a C++ program through find_package(shardwise)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
# A C++ program brings no LD_LIBRARY_PATH; the environment's own cmake and ninja come first.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"} | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
}


def run(*command: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=400, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `cmake --install` put the build tree."""
    installed = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", installed)
    return installed


def test_every_room_header_is_installed_under_include_shardwise(prefix: Path) -> None:
    rooms = ("kernels", "placements", "plans", "runtime", "ops", "wrappers", "shardwise")
    headers = {path.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.h")}
    include = prefix / "include" / "shardwise"
    missing = [h for h in headers if not (include / (h.name if h.parts[0] == "shardwise" else h)).is_file()]
    assert not missing


def test_library_needs_no_python(prefix: Path) -> None:
    (library,) = prefix.rglob("libshardwise.so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    assert needed and not [name for name in needed if "python" in name]


def test_consumer_builds_and_runs(prefix: Path, tmp_path: Path) -> None:
    consumer = Path(__file__).parent / "consumer"
    run(
        *("cmake", "-S", consumer, "-B", tmp_path, "-G", "Ninja"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"),
    )
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "consumer") == "[4, 3] as [Shard(0)] on 1 rank equals dense\n"
