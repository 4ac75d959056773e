"""Ranks as threads of one process, for tests and notebooks."""

import threading
from collections.abc import Callable
from typing import TypeVar

from shardwise._C import ThreadHub
from shardwise._rank_generators import separate_generators

__all__ = ["run_ranks"]

Result = TypeVar("Result")


def run_ranks(
    n_ranks: int, fn: Callable[[int], Result], *, timeout: float = 300.0, strict: bool | None = None
) -> list[Result]:
    """Calls `fn(rank)` in `n_ranks` threads, each a rank of its own world, and returns the results by rank.

    A failure is raised here as it was there, with a note that names the rank; of several, the first. The other ranks are
    released from the collectives they wait in; Ctrl-C releases all. `timeout`: seconds that a rank waits for the others in one
    collective.

    `strict`: ranks communicate as over NCCL: what would hang there, or read what has not arrived, is an error here that names
    ranks and calls. None: as the environment's SHARDWISE_THREADS=strict says.

    What torch has once per process the ranks share, as forward-mode AD levels, and the default generator, for plain tensors.
    DTensors draw from a generator of the rank's own, which starts as a copy of that as it was before the ranks started; what a rank
    calls of torch.manual_seed, get_rng_state and set_rng_state is about its own one, too.

    >>> from shardwise.testing import run_ranks
    >>> def on_rank(rank):
    ...     mesh = sw.init_device_mesh("cpu", (2,))
    ...     return sw.ones(5, device_mesh=mesh, placements=[sw.Shard(0)]).to_local().shape[0]
    >>> run_ranks(2, on_rank)
    [3, 2]
    """
    separate_generators()
    hub = ThreadHub(n_ranks, timeout, strict)
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            hub.enter(rank)
            results[rank] = fn(rank)
            hub.finish(rank)
        except BaseException as error:
            if hub.abort(rank, f"{type(error).__name__}: {error}"):
                error.add_note(f"raised on rank {rank} of {n_ranks}")
                failures.append(error)
        finally:
            hub.leave()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(n_ranks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C, or no more threads: ranks would wait for each other until the timeout
        for rank in range(n_ranks):
            hub.abort(rank, f"{type(error).__name__}: {error}")
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(n_ranks)]
