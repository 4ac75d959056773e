"""torch's default generator, as ranks see it that are threads: each has its own, and torch's functions speak of that one.

Without it torch.utils.checkpoint, which replays random numbers by the generator's state, would not find those of DTensors.
"""

import functools
from typing import Any

import torch

from shardwise import _C


@functools.cache
def separate_generators() -> None:
    """From now on torch.manual_seed, get_rng_state and set_rng_state include, in a thread that is a rank, the rank's generator.

    The state there is both: the process's generator, which plain tensors draw from, then the rank's. States of either kind
    can be set anywhere.
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
