"""What stages of a pipeline refuse: those that do not fit the mesh or their rank."""

from error_cases import case

TITLE = "Pipelines"
SETUP = """
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

mesh = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "tp"))
number, device, batch = mesh.get_local_rank("pp"), torch.device("cpu"), torch.ones(4, 4)
layer = sw.distribute_module(nn.Linear(4, 4), mesh["tp"])
"""
CASES = [
    case(
        "a stage on the ranks of another one",
        'PipelineStage(sw.distribute_module(nn.Linear(4, 4), mesh), number, 2, device, group=mesh.get_group("pp"))',
        ValueError,
        of_processes=True,
    ),
    case(
        "stages in another order than the ranks",
        'stage = PipelineStage(layer, 1 - number, 2, device, group=mesh.get_group("pp"))\nScheduleGPipe(stage, 2).step(batch)',
        ValueError,
        of_processes=True,
        is_of_rank=True,
    ),
    case(
        "more stages than ranks, and one on each",
        'stage = PipelineStage(layer, number, 4, device, group=mesh.get_group("pp"))\nScheduleGPipe(stage, 4).step(batch)',
        ValueError,
        of_processes=True,
        is_of_rank=True,
    ),
]
