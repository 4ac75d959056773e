"""Stages that do not fit the mesh or each other: said before the first message of a pipeline, which would wait forever.

What all ranks see alike, the constructor of a stage says. What a rank alone may have wrong, they compare in the first step: which has which stage, of how
many, and in how many parts the batch comes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn

from shardwise.dtensor import DTensor


class _Share(NamedTuple):
    """What a rank of the pipeline has."""

    stages: list[int]
    n_stages: int
    n_parts: int

    def __str__(self) -> str:
        noun = "stage" if len(self.stages) == 1 else "stages"
        return f"{noun} {', '.join(map(str, self.stages))} of {self.n_stages}, and a batch in {self.n_parts} parts"


def checked(original: Any) -> Any:
    """The constructor of stages, which first looks at those that have our tensors."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        own = [
            (name, parameter) for name, parameter in _module(given).named_parameters() if isinstance(parameter, DTensor)
        ]
        if own:
            _check(given["num_stages"], _ranks_of(given.get("group")), own)
            index = given["stage_index"]
            if isinstance(index, int) and not 0 <= index < given["num_stages"]:  # all ranks are told in the first step
                given["stage_index"] %= given["num_stages"]
                self._shardwise_index = index
        original(*bound.args, **bound.kwargs)

    return __init__


def compared(original: Any) -> Any:
    """What a schedule does before its first step, for which all ranks of the pipeline are there."""

    @functools.wraps(original)
    def initialize(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        if not schedule.__dict__.get("_shardwise_compared"):
            _compare(getattr(schedule, "_stages", None) or [schedule._stage], schedule._n_microbatches)
            schedule._shardwise_compared = True
        return original(schedule, *args, **kwargs)

    return initialize


def _module(given: dict[str, Any]) -> nn.Module:
    module = given["submodule"]
    return module if isinstance(module, nn.Module) else nn.Module()


def _ranks_of(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _check(n_stages: int, ranks: list[int], own: Sequence[tuple[str, DTensor]]) -> None:
    """Raises ValueError."""
    if len(ranks) > n_stages:
        raise ValueError(
            f"[PipelineStage] the group has the {len(ranks)} ranks {ranks}, and there are {n_stages} stages: each of its ranks runs "
            'another stage. Give group=mesh.get_group("pp"), the ranks that have one part of every stage.'
        )
    for name, parameter in own:
        shared = sorted(set(parameter.device_mesh.mesh.flatten().tolist()) & set(ranks))
        if len(shared) > 1:
            raise ValueError(
                f"[PipelineStage] {name} lives on {parameter.device_mesh}, and so on the ranks {shared} of the pipeline {ranks}, which "
                'run other stages at another time. Give each stage the other mesh dims alone: parallelize_module(stage, mesh["tp"], '
                "...)."
            )


def _compare(stages: Sequence[Any], n_parts: int) -> None:
    """Raises ValueError on all ranks of the pipeline alike."""
    first, ranks = stages[0], _ranks_of(stages[0].group)
    indices = sorted(getattr(stage, "_shardwise_index", stage.stage_index) for stage in stages)
    mine = _Share(indices, first.num_stages, n_parts)
    shares: list[Any] = [mine] * len(ranks)
    if len(ranks) > 1:
        dist.all_gather_object(shares, mine, group=first.group)
    for rank, share in zip(ranks, shares, strict=True):
        if share[1:] != shares[0][1:]:
            raise ValueError(
                f"[PipelineStage] rank {rank} of the pipeline {ranks} has {share}, and rank {ranks[0]} {shares[0]}. Give all ranks the "
                "same num_stages and n_microbatches."
            )
    for rank, share in zip(ranks, shares, strict=True):
        unknown = [index for index in share.stages if not 0 <= index < share.n_stages]
        if unknown:
            raise ValueError(
                f"[PipelineStage] stage {unknown[0]} on rank {rank} of the pipeline {ranks} is none of the {share.n_stages} stages. Give "
                'the rank\'s place among them, mesh.get_local_rank("pp").'
            )
    if len(ranks) == 1:
        return
    for place, share in enumerate(shares):
        wanted = [stage for stage, home in first.stage_index_to_group_rank.items() if home == place]
        if share.stages != sorted(wanted):
            raise ValueError(
                f"[PipelineStage] rank {ranks[place]} of the pipeline {ranks} has {share}: by its place it would have "
                f'{share._replace(stages=wanted)}. Give each rank the stage of its place, mesh.get_local_rank("pp"), of '
                'mesh.size("pp") stages; a schedule that takes several, all of its own.'
            )
