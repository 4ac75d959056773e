"""The sdist holds what is compiled and tested, and asks for the whole range of torch's versions."""

import re
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONLY_HERE = (".ci/", ".github/")

pytestmark = pytest.mark.skipif(
    find_spec("setuptools_scm") is None or not (ROOT / ".git").exists(),
    reason="needs git's files and setuptools-scm, which scripts/setup installs",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist's one folder."""
    folder = tmp_path_factory.mktemp("sdist")
    program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", program, folder]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (archive,) = folder.glob("shardwise-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_it_holds_every_file_of_the_repository_but_its_own_matters(unpacked: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    wanted = {name for name in listed if (ROOT / name).exists() and not name.startswith(ONLY_HERE)}
    there = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert wanted <= there, wanted - there
    assert not [name for name in there if name.startswith(ONLY_HERE) or name.endswith((".so", ".o", ".pyc"))]


def test_its_metadata_have_the_range_of_torch_and_its_folder_the_version(unpacked: Path) -> None:
    metadata = (unpacked / "PKG-INFO").read_text()
    (version,) = re.findall(r"^Version: (.*)$", metadata, re.MULTILINE)
    assert unpacked.name == f"shardwise-{version}"
    assert re.findall(r"^Requires-Dist: (torch.*)$", metadata, re.MULTILINE) == ["torch<2.16,>=2.11"]


def test_cmake_reads_the_version_from_it(unpacked: Path) -> None:
    script = unpacked.parent / "version.cmake"
    script.write_text(
        f'include("{unpacked}/cmake/version.cmake")\nshardwise_version("{unpacked}")\nmessage("${{version}}")\n'
    )
    cmake = Path(sys.executable).with_name("cmake")
    ran = subprocess.run([cmake, "-P", script], capture_output=True, text=True, timeout=60, check=True)
    assert unpacked.name == f"shardwise-{ran.stderr.strip()}"
