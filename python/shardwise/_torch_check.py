"""Refuses a torch of another minor version than the one compiled against, because torch's C++ interfaces change with each.

It is imported before shardwise._C, which would fail with the name of a missing symbol, or misread torch's objects.
"""

import torch

from shardwise import _build_facts


def minor(version: str) -> str:
    """The minor version: "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def refuse_another(installed: str) -> None:
    """Raises ImportError unless `installed` has the minor version that this package was compiled against."""
    if minor(installed) != minor(_build_facts.TORCH):
        raise ImportError(
            f"[import] shardwise {_build_facts.VERSION} was compiled against torch {_build_facts.TORCH}, and torch {installed} is "
            "installed: torch's C++ interfaces change with each minor version. Install the torch that fits "
            f'(pip install "torch=={minor(_build_facts.TORCH)}.*"), or compile shardwise beside yours '
            "(pip install --no-build-isolation --no-binary shardwise shardwise)."
        )


refuse_another(torch.__version__)
