"""`pip install` of the sdist gives a package that imports away from the sources. Compiles everything a second time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not os.environ.get("SHARDWISE_TEST_WHEEL"), reason="compiles everything again; set SHARDWISE_TEST_WHEEL=1"
)


def test_installed_package_imports_with_its_libraries_beside_it(tmp_path: Path) -> None:
    pack = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", pack, tmp_path], check=True, capture_output=True, timeout=120, cwd=ROOT)
    (sdist,) = tmp_path.glob("shardwise-*.tar.gz")
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", tmp_path, sdist]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert (tmp_path / "shardwise" / "libshardwise.so").is_file()
    minor = ".".join(torch.__version__.split(".")[:2])
    (metadata,) = tmp_path.glob("shardwise-*.dist-info/METADATA")
    assert f"Requires-Dist: torch=={minor}.*" in metadata.read_text()
    program = "import shardwise, shardwise._C as c; print(shardwise.__file__, c.__file__, shardwise.Shard(0))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert ran.stdout.count(str(tmp_path)) == 2 and "Shard(0)" in ran.stdout, ran.stdout + ran.stderr
