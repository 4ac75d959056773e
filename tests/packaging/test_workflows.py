"""What GitHub runs is what the repository has: scripts that exist, versions of torch and Python that pyproject.toml allows."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")


def loaded(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_that_are_run_exist(path: Path) -> None:
    steps = [step for job in loaded(path)["jobs"].values() for step in job["steps"]]
    scripts = {name for step in steps for name in re.findall(r"^(?:\./)?((?:scripts|\.ci)/\w+)", step.get("run", ""))}
    assert scripts
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_matrices_stay_within_what_the_package_allows(path: Path) -> None:
    (requirement,) = (each for each in PROJECT["dependencies"] if each.startswith("torch"))
    oldest, end = (numbers(text) for text in re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", requirement).groups())
    for job in loaded(path)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        assert all(oldest <= numbers(version) < end for version in matrix.get("torch", []))
        for python in matrix.get("python", []):
            version = numbers(python) if "." in python else (int(python[2]), int(python[3:]))
            assert version >= numbers(PROJECT["requires-python"].removeprefix(">="))


def test_the_oldest_and_the_newest_torch_are_tested() -> None:
    (requirement,) = (each for each in PROJECT["dependencies"] if each.startswith("torch"))
    oldest, end = re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", requirement).groups()
    versions = loaded(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["torch"]["strategy"]["matrix"]["torch"]
    major, minor = numbers(end)
    assert versions[0].startswith(f"{oldest}.") and versions[-1].startswith(f"{major}.{minor - 1}.")


@pytest.mark.parametrize("name", ["bug", "operator", "feature"])
def test_forms_of_issues_ask_for_something(name: str) -> None:
    form = loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
