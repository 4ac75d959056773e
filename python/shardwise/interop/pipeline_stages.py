"""Errors for stages that do not fit the mesh or their rank, raised before the first message of a pipeline would wait forever.

Each rank checks its own stages and sends nothing: other ranks' stages may have no tensors of ours, and then check nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from shardwise.dtensor import DTensor


def init(original: Any, stage: Any, *arguments: Any, **options: Any) -> None:
    original(stage, *arguments, **options)
    own = _ours(stage.submod)
    if own:
        _check_mesh(_ranks_of(stage), own)


def initialize(original: Any, schedule: Any, *arguments: Any, **options: Any) -> Any:
    """Checks the stages of a schedule once. The schedule calls it before each step."""
    if "_shardwise_checked" not in schedule.__dict__:
        schedule._shardwise_checked = True
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        if any(_ours(stage.submod) for stage in stages):
            _check_places(stages)
    return original(schedule, *arguments, **options)


def _ours(module: Any) -> list[tuple[str, DTensor]]:
    if not isinstance(module, nn.Module):
        return []
    return [(name, parameter) for name, parameter in module.named_parameters() if isinstance(parameter, DTensor)]


def _ranks_of(stage: Any) -> list[int]:
    return dist.get_process_group_ranks(stage.group or dist.group.WORLD)


def _check_mesh(ranks: list[int], own: Sequence[tuple[str, DTensor]]) -> None:
    """Raises ValueError if ranks of a parameter's mesh run other stages."""
    for name, parameter in own:
        shared = sorted(set(parameter.device_mesh.mesh.flatten().tolist()) & set(ranks))
        if len(shared) > 1:
            raise ValueError(
                f"[PipelineStage] {name} lives on {parameter.device_mesh}, and so on the ranks {shared} of the pipeline {ranks}, which run "
                'other stages at other times. Give each stage only the other mesh dims: parallelize_module(stage, mesh["tp"], ...).'
            )


def _check_places(stages: Sequence[Any]) -> None:
    """Raises ValueError if this rank has other stages than those of its place in the pipeline."""
    first, ranks = stages[0], _ranks_of(stages[0])
    mine = sorted(stage.stage_index for stage in stages)
    wanted = sorted(stage for stage, home in first.stage_index_to_group_rank.items() if home == first.group_rank)
    if len(ranks) > 1 and mine != wanted:
        raise ValueError(
            f"[PipelineStage] rank {ranks[first.group_rank]} of the pipeline {ranks} has {_words(mine)} of {first.num_stages}, but at its "
            f'place it must have {_words(wanted)}. Give each rank the stage of its place, mesh.get_local_rank("pp"), of mesh.size("pp") '
            "stages; if a schedule takes several stages per rank, give it all stages of the place."
        )


def _words(stages: Sequence[int]) -> str:
    return f"{'stage' if len(stages) == 1 else 'stages'} {', '.join(map(str, stages))}"
