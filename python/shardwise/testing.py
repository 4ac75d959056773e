"""Ranks as threads of one process, for tests and notebooks."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from shardwise import _C

__all__ = ["run_ranks"]

Result = TypeVar("Result")


def run_ranks(
    n_ranks: int, fn: Callable[[int], Result], *, timeout: float = 300.0, strict: bool | None = None
) -> list[Result]:
    """Calls `fn(rank)` in `n_ranks` threads, each of which is a rank, and returns the results by rank.

    If a rank raises an exception, it is raised here, with a note that names the rank; if several do, the first one is raised. The other ranks
    stop waiting in collectives; so do all ranks after Ctrl-C. `timeout`: seconds that a rank waits for the others in one collective.

    `strict`: ranks communicate as over NCCL. A call that would hang there, or would read values that have not arrived, is an error that names
    ranks and calls. None: strict if the environment has SHARDWISE_THREADS=strict.

    Backwards run in the threads of their ranks. Ranks may share a GPU, and then its current stream.

    Ranks share what torch has once per process, such as forward-mode AD levels, and the default random number generator for plain tensors.
    DTensors draw from a generator of the rank, which starts as a copy of the default generator. torch.manual_seed, get_rng_state and
    set_rng_state within `fn` also act on the rank's generator.

    >>> from shardwise.testing import run_ranks
    >>> def on_rank(rank):
    ...     mesh = sw.init_device_mesh("cpu", (2,))
    ...     return sw.ones(5, device_mesh=mesh, placements=[sw.Shard(0)]).to_local().shape[0]
    >>> run_ranks(2, on_rank)
    [3, 2]
    """
    _separate_generators()
    hub = _C.ThreadHub(n_ranks, timeout, strict)
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
    except BaseException as error:  # Ctrl-C, or a thread that could not start: ranks would wait until the timeout
        for rank in range(n_ranks):
            hub.abort(rank, f"{type(error).__name__}: {error}")
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(n_ranks)]


@functools.cache
def _separate_generators() -> None:
    """Makes torch.manual_seed, get_rng_state and set_rng_state act on the rank's generator, too, in a thread that is a rank: torch.utils.checkpoint
    replays random numbers by the state of the default generator, and would not replay those of DTensors otherwise.

    There, a state is the state of the process's generator, which plain tensors draw from, followed by the rank's. set_rng_state takes states
    with and without the rank's part in any thread.
    """
    seed_process, state_of_process, set_process = torch.manual_seed, torch.get_rng_state, torch.set_rng_state

    @functools.wraps(seed_process)
    def manual_seed(seed: Any) -> torch.Generator:
        generator = seed_process(seed)
        if _C.is_thread_rank():
            _C.seed_rank(int(seed) % 2**64)
        return generator

    @functools.wraps(state_of_process)
    def get_rng_state() -> torch.Tensor:
        state = state_of_process()
        return torch.cat([state, _C.rank_state()]) if _C.is_thread_rank() else state

    @functools.wraps(set_process)
    def set_rng_state(new_state: torch.Tensor) -> None:
        n_bytes = min(len(state_of_process()), len(new_state))
        with torch._C.DisableTorchFunction():  # in a dry run a part of a state would be on meta
            of_process, of_rank = new_state[:n_bytes], new_state[-n_bytes:].clone()
        set_process(of_process)
        if _C.is_thread_rank():
            _C.set_rank_state(of_rank)

    for module in (torch, torch.random):
        module.manual_seed, module.get_rng_state, module.set_rng_state = manual_seed, get_rng_state, set_rng_state  # type: ignore[attr-defined]
