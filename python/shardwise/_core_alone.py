"""Names that a build of the core alone does not have."""

from typing import NoReturn


def refuse(name: str) -> NoReturn:
    """The `__getattr__` of modules in such a build."""
    raise AttributeError(
        f"[shardwise] there is no {name} in this build, which has the core alone. The layers above it (tables, pictures, parallel styles, "
        "fully_shard) are in a build with -DSHARDWISE_LAYERS=ON, the default.",
        name=name,
    )
