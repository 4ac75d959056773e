"""TorchRec's pooled lookup in a table sharded by rows, if TorchRec is installed: its FUSED kernel, with SGD in the backward.

torchrec 1.9.2 with fbgemm-gpu-cpu 1.8.0 works with torch 2.13. To leave the environment as it is:

    scripts/setup_torchrec
    export PYTHONPATH=build/python:build/torchrec
"""

import importlib.util
import logging
import warnings

import torch
import torch.distributed as dist
from embedding_problem import LEARNING_RATE

HOW_TO_INSTALL = f"not installed; the head of {__name__}.py says how"


def is_installed():
    return importlib.util.find_spec("torchrec") is not None and importlib.util.find_spec("fbgemm_gpu") is not None


def pooled(problem):
    """A call as in embedding_by_hand.py."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv

    set_gradient_division(False)  # by the number of ranks: the loss is taken to be a mean over them
    config = EmbeddingBagConfig(
        name="table", embedding_dim=problem.n_columns, num_embeddings=problem.n_rows, feature_names=["ids"]
    )
    module = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    )
    n_ranks = dist.get_world_size()
    plan = construct_module_sharding_plan(
        module,
        {"table": row_wise(compute_kernel="fused")},
        sharder,
        local_size=n_ranks,
        world_size=n_ranks,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    sharded = sharder.shard(module, plan, env, torch.device("cpu"))
    table = sharded.state_dict()["embedding_bags.table.weight"].local_shards()[0].tensor
    table.copy_(problem.table())

    own_ids = problem.own(problem.ids)
    grad = problem.own(problem.gradient())
    lengths = torch.full((len(own_ids),), own_ids.shape[1])

    def call():
        bags = KeyedJaggedTensor(["ids"], own_ids.view(-1), lengths=lengths)
        result = sharded(bags).wait().values()
        result.backward(grad)
        return result.detach(), lambda: (problem.table() - table) / LEARNING_RATE

    return call
