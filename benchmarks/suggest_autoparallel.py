"""A plan by torch's AutoParallel (github.com/meta-pytorch/autoparallel), as the layouts of weights, in JSON: benchmarks/suggest.py runs this program.

    PYTHONPATH=autoparallel:libraries python benchmarks/suggest_autoparallel.py llama 32 1 8

The arguments: the model, its number of blocks, the number of sequences, and the mesh of fake ranks ("2,4").

AutoParallel's solver reads the model's operators on a mesh of CPUs, with the costs of H100s. The batch is divided over the first mesh dim if it can
be. Parameters take 1 / ranks of their memory at most, which is AutoParallel's default. Its plan is more than the layouts of weights: it also places
activations, which our rules place after the weights.
"""

import importlib.util
import json
import math
import sys
import time

from suggest_models import MODELS

# suggest()'s options for the hardware that AutoParallel plans for: 70 % of an H100's arithmetic and memory, and its links.
RATES = {"flops": 692, "memory_bandwidth": 2345, "links": [(5, 320), (20, 50)]}
N_TOKENS = 4096  # of a sequence
HOW_TO_INSTALL = "Clone github.com/meta-pytorch/autoparallel, install pulp and filecheck, and put both into PYTHONPATH."


def is_installed():
    return all(importlib.util.find_spec(name) for name in ("autoparallel", "pulp", "filecheck"))


def uses(node, solution, is_turned=False):
    """The operators that take a weight and an activation, the weight's place among their operands, and whether it is transposed there."""
    for user in node.users:
        if user not in solution:
            continue
        if len(user.all_input_nodes) == 1 and "embedding" not in str(user.target):
            turns = "permute" in str(user.target) or ".t." in str(user.target)
            yield from uses(user, solution, is_turned != turns)
        else:
            yield user, user.all_input_nodes.index(node), is_turned


def layouts_of(node, solution, order):
    """How a weight is used in the forward, by mesh dim: "data" if it is whole and the operator's result has a part of the batch."""
    user, place, is_turned = min(uses(node, solution), key=lambda use: order[use[0]])
    used, results = solution[user].input_specs[place].placements, solution[user].output_specs.placements
    return [
        f"shard {1 - w.dim if is_turned else w.dim}" if w.is_shard() else "data" if r.is_shard(0) else "whole"
        for w, r in zip(used, results, strict=True)
    ]


def main():
    name, *numbers, shape = sys.argv[1:]
    n_blocks, n_sequences = map(int, numbers)
    shape = tuple(map(int, shape.split(",")))
    import torch

    torch.cpu.get_device_name = lambda device=None: "NVIDIA H100"
    from autoparallel.api import AutoParallel
    from autoparallel.cost_models import h100_topo_config
    from torch._functorch._aot_autograd.fx_utils import get_named_param_nodes
    from torch.distributed.tensor import Replicate, Shard
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(shape))
    mesh = torch.distributed.device_mesh.init_device_mesh(
        "cpu", shape, mesh_dim_names=tuple(f"dim{i}" for i in range(len(shape)))
    )
    model, make_batch = MODELS[name](n_blocks)
    divides = n_sequences % shape[0] == 0
    layout = (Shard(0) if divides else Replicate(), *(Replicate() for _ in shape[1:]))
    begin = time.process_time()
    # The CPU's kernel of attention has no strategies there. The composed one divides heads.
    with (
        sdpa_kernel(SDPBackend.MATH),
        AutoParallel(model, lambda: make_batch(n_sequences, N_TOKENS), mesh, cost_model=h100_topo_config()) as planner,
    ):
        planner.add_input_constraints([layout])
        planner.add_output_constraints([layout])
        planner.add_parameter_memory_constraint()
        solution = planner.optimize_placement()
        order = {node: i for i, node in enumerate(planner.gm.graph.nodes)}
        weights = {
            path: layouts_of(node, solution, order) for path, node in get_named_param_nodes(planner.gm.graph).items()
        }
    print(json.dumps({"seconds": time.process_time() - begin, "weights": weights}))


if __name__ == "__main__":
    main()
