"""TorchRec's planner, and its cost model of plans, for embedding_planners.py."""

import copy
import json

import torch

import shardwise as sw

# The kind of shards that TorchRec's model takes a treatment of ours for: its sharding type and compute kernel.
DATA_PARALLEL, TABLE_WISE, COLUMN_WISE, ROW_WISE = (
    ("data_parallel", "dense"),
    ("table_wise", "fused"),
    ("column_wise", "fused"),
    ("row_wise", "fused"),
)


class TorchRecPlanner:
    """TorchRec's planner for these tables, on CPUs of one host unless `topology` says otherwise. All ranks have equal batches and ids."""

    def __init__(self, tables, n_ranks, batch, **topology):
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import ParameterConstraints, Topology

        self._tables, self._n_ranks, self._batch = tables, n_ranks, batch
        default = {"local_world_size": n_ranks, "compute_device": "cpu", "ddr_cap": 2**50, "hbm_cap": 2**50}
        self._topology = Topology(world_size=n_ranks, **(default | topology))
        self._constraints = {t.name: ParameterConstraints(pooling_factors=[t.ids_per_sample]) for t in tables}
        configs = [
            EmbeddingBagConfig(name=t.name, embedding_dim=t.n_columns, num_embeddings=t.n_rows, feature_names=[t.name])
            for t in tables
        ]
        self._module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self._sharders = [EmbeddingBagCollectionSharder()]

    def plan(self):
        """TorchRec's plan of the tables, as a plan of Shardwise."""
        from torchrec.distributed.planner import EmbeddingShardingPlanner

        planner = EmbeddingShardingPlanner(
            topology=self._topology, batch_size=self._batch, constraints=self._constraints
        )
        found = planner.plan(self._module, self._sharders)
        plan = json.loads(
            sw.plan_embeddings(
                self._tables, self._n_ranks, strategy="cost_balanced", batch_per_rank=self._batch
            ).to_json()
        )
        for table, made in zip(self._tables, plan["plans"], strict=True):
            made.clear()
            made.update(translated(found.plan[""][table.name], table))
        return sw.EmbeddingPlan.from_json(json.dumps(plan))

    def estimate(self, plan):
        """The cost of the most loaded rank in a step of a plan of Shardwise, by TorchRec's model, in its own unit."""
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.perf_models import NoopPerfModel

        enumerator = EmbeddingEnumerator(topology=self._topology, batch_size=self._batch, constraints=self._constraints)
        options = {
            (option.name, option.sharding_type, option.compute_kernel): option
            for option in enumerator.enumerate(self._module, self._sharders)
        }
        chosen = []
        for table, planned in zip(self._tables, plan.table_plans, strict=True):
            kind = kind_of(planned, table)
            # Narrow tables have no columns to deal in its list: their shards are those of a table-wise one then.
            option = copy.deepcopy(options.get((table.name, *kind)) or options[(table.name, *TABLE_WISE)])
            option.sharding_type = kind[0]
            if kind != DATA_PARALLEL:
                option.shards = [shard_of(piece) for piece in planned.slices]
            else:
                for rank, shard in enumerate(option.shards):
                    shard.rank = rank
            chosen.append(option)
        enumerator.populate_estimates(chosen)
        return NoopPerfModel(self._topology).rate(chosen)


def kind_of(planned, table):
    if planned.treatment == "replicated":
        return DATA_PARALLEL
    if any(piece.rows[1] - piece.rows[0] < table.n_rows for piece in planned.slices):
        return ROW_WISE
    return TABLE_WISE if len(planned.slices) == 1 else COLUMN_WISE


def shard_of(piece):
    from torchrec.distributed.planner.types import Shard

    (first_row, end_row), (first_column, end_column) = piece.rows, piece.columns
    return Shard(
        size=[end_row - first_row, end_column - first_column], offset=[first_row, first_column], rank=piece.rank
    )


def translated(sharding, table):
    """One table of TorchRec's plan, as JSON of Shardwise's plans."""
    reason = sharding.sharding_type
    if reason == "data_parallel":
        return {"treatment": "replicated", "reason": reason}
    boxes = [
        (shard.placement.rank(), shard.shard_offsets, shard.shard_sizes) for shard in sharding.sharding_spec.shards
    ]
    if all(
        sizes[0] == table.n_rows for _, _, sizes in boxes
    ):  # several on a rank are one: which columns is all the same
        widths, slices, begin = {}, [], 0
        for rank, _, sizes in boxes:
            widths[rank] = widths.get(rank, 0) + sizes[1]
        for rank, width in widths.items():
            slices.append({"rank": rank, "columns": [begin, begin + width]})
            begin += width
        return {"treatment": "table-parallel", "reason": reason, "slices": slices}
    slices = [{"rank": rank, "rows": [o[0], o[0] + s[0]], "columns": [o[1], o[1] + s[1]]} for rank, o, s in boxes]
    return {"treatment": "row-parallel", "reason": reason, "slices": slices}
