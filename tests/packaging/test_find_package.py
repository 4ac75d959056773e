"""An installed Shardwise serves a C++ program through find_package(shardwise) and through pkg-config, without Python in its process."""

import os
import re
import shlex
import shutil
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
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `cmake --install` put the build tree."""
    installed = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", installed)
    return installed


def test_every_room_header_is_installed_under_include_shardwise(prefix: Path) -> None:
    rooms = ("kernels", "placements", "plans", "runtime", "ops", "threads", "wrappers", "shardwise")
    headers = {path.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.h")}
    include = prefix / "include" / "shardwise"
    missing = [h for h in headers if not (include / (h.name if h.parts[0] == "shardwise" else h)).is_file()]
    assert not missing


def test_library_needs_no_python(prefix: Path) -> None:
    (library,) = prefix.rglob("libshardwise.so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    assert needed and not [name for name in needed if "python" in name]


CONSUMER = Path(__file__).parent / "consumer"
PRINTED = "[8, 3] as [Shard(0, sizes=[1, 3, 1, 3])] on 4 ranks\ntrained [Shard(0), Shard(0)]\n"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "4")


def expect_runs(program: Path) -> None:
    """On threads and on processes it finds what it computes dense, and no Python in its memory; nor does the loader."""
    assert run(program) == PRINTED
    assert run(*TORCHRUN, program) == PRINTED
    loaded = run("ldd", program)
    assert "libshardwise.so" in loaded and "not found" not in loaded
    assert "libpython" not in loaded and "libtorch_python" not in loaded


def test_consumer_builds_and_runs(prefix: Path, tmp_path: Path) -> None:
    run(
        *("cmake", "-S", CONSUMER, "-B", tmp_path, "-G", "Ninja"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"),
    )
    run("cmake", "--build", tmp_path)
    expect_runs(tmp_path / "consumer")


def test_a_torch_of_another_minor_version_and_one_that_is_not_there_are_refused(prefix: Path, tmp_path: Path) -> None:
    def error(root: Path) -> str:
        words = (
            "cmake",
            "-S",
            CONSUMER,
            "-B",
            tmp_path / "build",
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DSHARDWISE_TORCH_ROOT={root}",
        )
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=600, env=ENVIRONMENT
        )
        assert done.returncode != 0
        shutil.rmtree(tmp_path / "build")
        return " ".join(done.stderr.split())

    other = tmp_path / "torch"
    (other / "include" / "c10" / "util").mkdir(parents=True)
    (other / "include" / "c10" / "util" / "Exception.h").touch()
    (other / "version.py").write_text("__version__ = '2.99.1'\n")
    assert f"and {other} is torch 2.99.1" in error(other)
    assert f"SHARDWISE_TORCH_ROOT is {tmp_path / 'nowhere'}, which is no directory" in error(tmp_path / "nowhere")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_consumer_builds_and_runs_by_pkg_config(prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (described,) = prefix.rglob("shardwise.pc")
    monkeypatch.setitem(ENVIRONMENT, "PKG_CONFIG_PATH", str(described.parent))
    assert re.fullmatch(r"\d+(\.\d+)+\n", run("pkg-config", "--modversion", "shardwise"))
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "shardwise"))
    program = tmp_path / "consumer"
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Werror")  # of our headers, too: torch's are the system's
    run("c++", "-std=c++20", "-O1", *warnings, CONSUMER / "main.cpp", "-o", program, *flags)
    expect_runs(program)
