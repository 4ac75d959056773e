"""Default random generators for ranks that are threads: each rank has its own, and torch's functions act on it.

torch.utils.checkpoint replays random numbers by the default generator's state, and would not replay those of DTensors otherwise.
"""

import functools
from typing import Any

import torch

from shardwise import _C


@functools.cache
def separate_generators() -> None:
    """Makes torch.manual_seed, get_rng_state and set_rng_state act on the rank's generator, too, in a thread that is a rank.

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
        set_process(new_state[:n_bytes])
        if _C.is_thread_rank():
            _C.set_rank_state(new_state[-n_bytes:].clone())

    for module in (torch, torch.random):
        module.manual_seed, module.get_rng_state, module.set_rng_state = manual_seed, get_rng_state, set_rng_state  # type: ignore[attr-defined]
