"""Pictures of layouts."""

from shardwise import _C
from shardwise.dtensor import DTensor

__all__ = ["picture", "visualize_sharding"]


def picture(dtensor: DTensor, *, color: bool = False, max_width: int = 100, format: str = "text") -> str:
    """The layout of a 0-D to 2-D tensor: which rank holds what, at true coordinates, then a line per rank.

    Sends nothing, and is equal on every rank. `max_width`: columns of the terminal. `format`: "text".
    Raises ValueError for more than 2 dims and for an unknown format.

    >>> text = sw.debug.picture(sw.ones(4, 6, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> text.splitlines()[0]
    '[4, 6] as [Shard(0)] on 4 ranks (0-3), 96 bytes'
    """
    return _C.picture(dtensor, color, max_width, format)


def visualize_sharding(dtensor: DTensor, header: str = "", use_rich: bool = False) -> None:
    """Prints `picture(dtensor)` under `header`, on the ranks that call it; in colour with `use_rich`.

    >>> sw.visualize_sharding(sw.ones(4, 6, device_mesh=mesh, placements=[sw.Shard(0)]))
    [4, 6] as [Shard(0)] on 4 ranks (0-3), 96 bytes
    ...
      imbalance 1.00: every rank holds 24 bytes
    """
    if header:
        print(header)
    print(picture(dtensor, color=use_rich))
