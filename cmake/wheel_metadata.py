"""The requirements of a wheel beyond pyproject.toml: the torch that it is compiled against.

torch's C++ interfaces change with each minor version, so a wheel fits those of one: `torch==2.13.*`. An sdist fits the whole range.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class TorchRequirement:
    """A provider of scikit-build-core: adds to the dependencies of wheels."""

    def build_state(self, state: str) -> None:
        self._is_sdist = state == "sdist"

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        return {"dependencies": [] if self._is_sdist else requirement()}


def requirement() -> list[str]:
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:  # CMake says so, and the way out
        return []
    return [f"torch=={major}.{minor}.*"]
