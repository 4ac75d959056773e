"""The version comes from git's tags: by the same rule where pip builds and where CMake does."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# version.cmake is included before project(), so a script may include it, too.
SCRIPT = """include("{root}/cmake/version.cmake")
shardwise_version("{folder}")
message("${{version}} ${{numbers}}")
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "-C", folder, *arguments], check=True, capture_output=True)


def by_cmake(folder: Path) -> list[str]:
    """The version, and the numbers that CMake compares."""
    script = folder.parent / "version.cmake"
    script.write_text(SCRIPT.format(root=ROOT, folder=folder))
    cmake = Path(sys.executable).with_name("cmake")
    ran = subprocess.run([cmake, "-P", script], capture_output=True, text=True, timeout=60, check=True)
    return ran.stderr.split()


def by_setuptools_scm(folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "setuptools_scm"], capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text("[tool.setuptools_scm]\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


# tags, commits after the last one, the version without its commit, the numbers
CASES = [
    ([], 0, "0.1.dev1", "0.1"),
    ([], 2, "0.1.dev3", "0.1"),
    (["v0.2.0"], 0, "0.2.0", "0.2.0"),
    (["v0.2.0"], 5, "0.2.1.dev5", "0.2.1"),
    (["v0.2.0", "v1.10"], 1, "1.11.dev1", "1.11"),
    (["unlike-a-version"], 1, "0.1.dev2", "0.1"),
]


@pytest.mark.parametrize("tags, n_after, version, numbers", CASES)
def test_tags_name_versions(repository: Path, tags: list[str], n_after: int, version: str, numbers: str) -> None:
    for tag in tags:
        git(repository, "commit", "--quiet", "--allow-empty", "-m", tag)
        git(repository, "tag", tag)
    if tags == ["unlike-a-version"]:
        git(repository, "reset", "--quiet", "--hard", "HEAD~1")
    for _ in range(n_after):
        git(repository, "commit", "--quiet", "--allow-empty", "-m", "more")
    whole, compared = by_cmake(repository)
    assert whole.split("+")[0] == version and compared == numbers
    assert ("+g" in whole) == (n_after > 0 or not tags)
    if find_spec("setuptools_scm") is not None and tags != ["unlike-a-version"]:
        assert by_setuptools_scm(repository) == whole


def test_without_git_the_files_of_an_sdist_and_of_an_archive_are_asked(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    assert by_cmake(folder) == ["0.1.dev0", "0.1"]
    archival = folder / ".git_archival.txt"
    archival.write_text("node: $Format:%H$\ndescribe-name: $Format:%(describe:tags=true,match=v*)$\n")
    assert by_cmake(folder) == ["0.1.dev0", "0.1"]
    archival.write_text("node: 1a2b3c4d5\ndescribe-name: v0.3.1-2-g1a2b3c4d5\n")
    assert by_cmake(folder) == ["0.3.2.dev2+g1a2b3c4d5", "0.3.2"]
    archival.write_text("node: 1a2b3c4d5\ndescribe-name: v0.3.1\n")
    assert by_cmake(folder) == ["0.3.1", "0.3.1"]
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: shardwise\nVersion: 0.4.0\n\nVersion: of the text\n")
    assert by_cmake(folder) == ["0.4.0", "0.4.0"]
