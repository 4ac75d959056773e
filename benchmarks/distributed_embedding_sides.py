"""The sides of benchmarks/distributed_embedding.py: each gives a call of one training step of many tables with SGD in or after the backward.

A call takes no arguments and returns two functions: one returns this rank's vectors, [samples, tables * columns], the other the whole table
0.
"""

import logging
import warnings

import embedding_torchrec as torchrec
import torch
import torch.distributed as dist
import torch.distributed.tensor as torch_dtensor
import torch.nn.functional as F
from embedding_problem import LEARNING_RATE

import shardwise as sw


def with_shardwise(problem, **plan_options):
    configs = [
        sw.TableConfig(f"t{t}", n_rows, problem.n_columns, ids_per_sample=problem.ids_per_sample)
        for t, n_rows in enumerate(problem.heights)
    ]
    layer = sw.DistributedEmbedding(configs, concatenate=True, **plan_options)
    with torch.no_grad():
        for t in range(len(problem.heights)):
            for piece, rows, columns in layer.pieces(f"t{t}"):
                piece.copy_(problem.table(t)[rows, columns])
    optimizer = sw.optim.FusedSGD(layer.parameters(), lr=LEARNING_RATE)
    inputs = [problem.own(ids) for ids in problem.ids]
    grad = problem.own_gradient()

    def call():
        vectors = layer(inputs)
        vectors.backward(grad)
        optimizer.step()
        return vectors.detach, lambda: layer.tables["t0"].detach().full_tensor()

    return call


def with_torch_dtensor(problem):
    mesh = torch_dtensor.init_device_mesh("cpu", (dist.get_world_size(),))
    tables = [
        torch.nn.Parameter(
            torch_dtensor.distribute_tensor(problem.table(t), mesh, [torch_dtensor.Shard(0)], src_data_rank=None)
        )
        for t in range(len(problem.heights))
    ]
    optimizer = torch.optim.SGD(tables, lr=LEARNING_RATE)
    shard = [torch_dtensor.Shard(0)]
    inputs = [torch_dtensor.DTensor.from_local(problem.own(ids), mesh, shard, run_check=False) for ids in problem.ids]
    grad = problem.own_gradient()

    def call():
        optimizer.zero_grad()
        vectors = [
            F.embedding(ids, table).sum(1).redistribute(placements=shard).to_local()
            for ids, table in zip(inputs, tables, strict=True)
        ]
        vectors = torch.cat(vectors, 1)
        vectors.backward(grad / dist.get_world_size())
        optimizer.step()
        return vectors.detach, lambda: tables[0].detach().full_tensor()

    return call


def in_order(vectors, tables):
    """The columns of these tables, in this order."""
    return vectors.view(len(vectors), len(tables), -1)[:, tables].reshape(len(vectors), -1)


def with_torchrec(problem):
    """TorchRec's FUSED kernel, with a plan of TorchRec's planner."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.types import ShardingEnv

    set_gradient_division(True)
    names = [f"t{t}" for t in range(len(problem.heights))]
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=problem.n_columns, num_embeddings=n_rows, feature_names=[name])
        for name, n_rows in zip(names, problem.heights, strict=True)
    ]
    module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    )
    n_ranks = dist.get_world_size()
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=n_ranks, local_world_size=n_ranks, compute_device="cpu"),
        batch_size=len(problem.ids[0]) // n_ranks,
    )
    plan = planner.collective_plan(module, [sharder], dist.group.WORLD).get_plan_for_module("")
    sharded = sharder.shard(module, plan, ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu"))
    state = sharded.state_dict()
    for t, name in enumerate(names):
        for shard in state[f"embedding_bags.{name}.weight"].local_shards():
            (row, column), (n_rows, n_columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(problem.table(t)[row : row + n_rows, column : column + n_columns])
    own = [problem.own(ids) for ids in problem.ids]
    values = torch.cat([ids.reshape(-1) for ids in own])
    lengths = torch.full((len(names) * len(own[0]),), own[0].shape[1])
    order = [names.index(name) for name in sharded(KeyedJaggedTensor(names, values, lengths=lengths)).wait().keys()]  # noqa: SIM118
    grad = in_order(problem.own_gradient(), order)

    def call():
        result = sharded(KeyedJaggedTensor(names, values, lengths=lengths)).wait().values()
        result.backward(grad)
        back = [order.index(table) for table in range(len(order))]
        return lambda: in_order(result.detach(), back), table_0

    def table_0():
        whole = torch.zeros(problem.heights[0], problem.n_columns)
        for shard in sharded.state_dict()["embedding_bags.t0.weight"].local_shards():
            (row, column), (n_rows, n_columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            whole[row : row + n_rows, column : column + n_columns] = shard.tensor
        dist.all_reduce(whole)
        return whole

    return call


def sides():
    installed = {"TorchRec, own planner, fused SGD": with_torchrec} if torchrec.is_installed() else {}
    return {"shardwise": with_shardwise, "torch.distributed.tensor": with_torch_dtensor, **installed}
