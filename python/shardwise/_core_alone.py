"""Names that a build of the core alone does not have."""

from typing import NoReturn


def refuse(name: str) -> NoReturn:
    """The `__getattr__` of modules in such a build."""
    raise AttributeError(
        f"[shardwise] {name} is not in this build, which has the core alone. Build with -DSHARDWISE_LAYERS=ON, the default.",
        name=name,
    )
