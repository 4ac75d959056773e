"""The conda recipe asks for what pyproject.toml asks for. It compiles in conda's own world, which a test does not have."""

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
RECIPE = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
VARIANTS = yaml.safe_load((ROOT / "conda" / "variants.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def named(requirements: list[str]) -> dict[str, str]:
    """The range of each by its name, as conda names it."""
    parts = [re.fullmatch(r"([\w.-]+) *(.*)", each).groups() for each in requirements if "${{" not in each]
    return {{"torch": "pytorch"}.get(name.replace("_", "-"), name.replace("_", "-")): spec for name, spec in parts}


def test_it_runs_with_what_a_wheel_asks_for() -> None:
    assert named(RECIPE["requirements"]["run"]) == {"python": "", **named(PROJECT["project"]["dependencies"])}


def test_it_compiles_with_what_an_sdist_asks_for() -> None:
    there = named([*RECIPE["requirements"]["build"], *RECIPE["requirements"]["host"]])
    wanted = named(PROJECT["build-system"]["requires"]) | {"cmake": PROJECT["tool"]["scikit-build"]["cmake"]["version"]}
    assert {name: there.get(name) for name in wanted} == wanted
    assert there["pytorch"] == named(PROJECT["project"]["dependencies"])["pytorch"]


def test_every_variable_of_a_variant_is_there() -> None:
    """rattler-build refuses stdlib("c") without c_stdlib; conda-forge would bring it, a checkout does not."""
    functions = {name for each in RECIPE["requirements"]["build"] for name in re.findall(r"\{\{ (\w+)\(", each)}
    assert functions == {"compiler", "stdlib"}
    assert {"python", "c_stdlib", "c_stdlib_version"} <= VARIANTS.keys()
    oldest = tuple(int(part) for part in PROJECT["project"]["requires-python"].removeprefix(">=").split("."))
    assert min(tuple(int(part) for part in each.split(".")[:2]) for each in VARIANTS["python"]) == oldest
