"""Time to make pictures of large meshes, and their sizes, in each format. Target: under a second each.

Times are CPU seconds of one thread. On an idle machine they equal wall time.

python benchmarks/pictures.py
"""

import time
from collections.abc import Callable
from typing import Any

from shardwise import Layout, Partial, Replicate, Shard
from shardwise.debug import diff, picture

TARGET_S = 1.0
N_RUNS = 5

LARGE = {
    "10,000 ranks, by rows": Layout((100_000, 64), (10_000,), [Shard(0)]),
    "100 x 100 ranks, a grid": Layout((100_000, 6400), (100, 100), [Shard(0), Shard(1)]),
    "100 x 100 ranks, 3 dims": Layout((1000, 100, 64), (100, 100), [Shard(0), Shard(1)]),
    "10,000 ranks, partial": Layout((64, 64), (10_000,), [Partial()]),
    "65,536 ranks, a grid": Layout((65_536, 65_536), (256, 256), [Shard(0), Shard(1)]),
}
MOVES = {
    "1,024 ranks, all-to-all": (Layout((4096, 4096), (1024,), [Shard(0)]), [Shard(1)]),
    "1,024 ranks, all-gather": (Layout((4096, 4096), (1024,), [Shard(0)]), [Replicate()]),
    "32 x 32 ranks, reduce": (Layout((4096, 4096), (32, 32), [Shard(0), Partial()]), [Replicate(), Shard(1)]),
    "10,000 ranks, all-to-all": (Layout((20_000, 20_000), (10_000,), [Shard(0)]), [Shard(1)]),
}


def least_seconds(call: Callable[[], Any]) -> float:
    """The least time of several runs: the others include disturbance by other programs."""
    times = []
    for _ in range(N_RUNS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    formats = ("text", "svg", "html")
    print(
        f"{'least of ' + str(N_RUNS) + ' runs, CPU seconds':32}{''.join(f'{format:>8}' for format in formats)}   page, MB"
    )
    slowest = 0.0
    rows: dict[str, Callable[[str], str]] = {}
    for name, layout in LARGE.items():
        rows[name] = lambda format, layout=layout: picture(layout).draw(format)
    for name, (source, target) in MOVES.items():
        rows[name] = lambda format, source=source, target=target: diff(source, target).draw(format)
    for name, draw in rows.items():
        seconds = [least_seconds(lambda draw=draw, format=format: draw(format)) for format in formats]
        slowest = max(slowest, *seconds)
        size = len(draw("html").encode()) / 1e6
        print(f"{name:32}{''.join(f'{each:8.3f}' for each in seconds)}{size:11.2f}")
    print(f"slowest {slowest:.3f} s; target {TARGET_S} s, {'reached' if slowest < TARGET_S else 'missed'}")


if __name__ == "__main__":
    main()
