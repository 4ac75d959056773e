"""The same steps on ranks that send and on ranks that plan: test_planned_communications.py compares their communications.

Run under torchrun: planned_program.py PARTS FOLDER, see run_parts(). `CASES`: functions of a Setting, by name.
"""

import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torchrun import run_parts

import shardwise as sw
from shardwise import _C, Partial, Replicate, Shard
from shardwise.fsdp import fully_shard
from shardwise.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    combine_tokens,
    dispatch_tokens,
    loss_parallel,
    parallelize_module,
)

N_RANKS = 4


def spread(n, n_rows, n_parts, device):
    """`n` ids in `n_parts` equal parts, each of which is spread evenly over the rows."""
    return (torch.arange(n // n_parts, device=device) * n_rows // (n // n_parts)).repeat(n_parts)


class Setting:
    """Meshes and tensors on `device_type`: "cpu" with values, or "meta" without."""

    def __init__(self, device_type):
        self.device_type = device_type
        self.line = sw.init_device_mesh(device_type, (N_RANKS,), mesh_dim_names=("tp",))
        self.grid = sw.init_device_mesh(device_type, (2, 2), mesh_dim_names=("dp", "tp"))

    def floats(self, *shape, mesh=None, placements=None, requires_grad=False):
        whole = torch.rand(shape, device=self.device_type)
        mesh = mesh or self.line
        start = [Replicate() if p.is_partial() else p for p in placements] if placements else [Replicate()] * mesh.ndim
        x = sw.distribute_tensor(whole, mesh, start, src_data_rank=None)
        if placements and list(placements) != start:
            x = x.redistribute(placements=placements)
        return x.detach().requires_grad_(requires_grad)

    def ids(self, n, n_rows, placements, mesh=None, shape=None, n_parts=N_RANKS):
        """Each part of the ids that a rank looks up is spread evenly over the rows, as on meta."""
        ids = spread(n, n_rows, n_parts, self.device_type)
        ids = sw.distribute_tensor(ids, mesh or self.line, placements, src_data_rank=None)
        return ids.reshape(shape) if shape else ids

    def model(self, make):
        with torch.device(self.device_type):
            return make()


def moves(setting):
    for shape in ((8, 12), (7, 5), (2, 3)):
        layouts = [[Replicate()], [Partial()], [Shard(0)], [Shard(1)], [Shard(0, sizes=[1, shape[0] - 1, 0, 0])]]
        for given in layouts:
            for wanted in layouts:
                setting.floats(*shape, placements=given).redistribute(placements=wanted)
    for kind in ("max", "avg", "product"):
        setting.floats(6, 4, placements=[Partial(kind)]).redistribute(placements=[Shard(0)])
        setting.floats(6, 4, placements=[Partial(kind)]).redistribute(placements=[Replicate()])


def moves_on_a_grid(setting):
    each = [Replicate(), Partial(), Shard(0), Shard(1)]
    layouts = [[a, b] for a in each for b in each]
    for given in layouts:
        for wanted in layouts:
            setting.floats(7, 6, mesh=setting.grid, placements=given).redistribute(placements=wanted)


def moves_with_gradients(setting):
    x = setting.floats(9, 8, placements=[Shard(0)], requires_grad=True)
    y = x.redistribute(placements=[Shard(1)], async_op=True)
    (y * y).redistribute(placements=[Replicate()]).sum().backward()
    sw.redistribute_many([x.detach(), (x + 1).detach()], [[Replicate()], [Shard(1)]])
    terms = [setting.floats(5, 3, placements=[Partial()]) for _ in range(3)]
    sw.redistribute_many(terms, [[Replicate()]] * 3)
    on_grid = setting.floats(8, 8, mesh=setting.grid, placements=[Shard(0), Shard(1)])
    on_grid.redistribute(setting.line, [Shard(0)])
    x.detach().redistribute(setting.grid, [Shard(1), Replicate()])


def between_slices(setting):
    rows, columns = setting.grid["dp"], setting.grid["tp"]
    x = setting.floats(4, 4, mesh=rows, placements=[Shard(0)])
    number = setting.floats(mesh=columns, placements=[Replicate()])
    _ = x * number
    _ = x * setting.floats(mesh=columns, placements=[Partial()])


def from_parts(setting):
    part = torch.ones(3, 4, device=setting.device_type)
    sw.DTensor.from_local(part, setting.line, [Shard(0)], run_check=True)
    sw.DTensor.from_local(part, setting.line, [Replicate()], run_check=True)
    whole = torch.ones(10, 4, device=setting.device_type)
    sw.distribute_tensor(whole, setting.line, [Shard(0)])
    sw.distribute_tensor(whole, setting.grid, [Shard(0), Shard(1)])
    sw.distribute_tensor(whole, setting.grid, [Replicate(), Shard(1)])


def operators(setting):
    x = setting.floats(8, 6, placements=[Shard(0)], requires_grad=True)
    w = setting.floats(6, 10, placements=[Shard(1)], requires_grad=True)
    y = F.dropout(x @ w, 0.3).relu()
    y = F.layer_norm(y, (10,)).softmax(0)
    (y.sum(0) + y.amax(0) + y.mean()).sum().backward()
    _ = torch.linalg.vector_norm(x.detach(), 2, 0) + x.detach().std(0)
    _ = x.detach().cumsum(0), x.detach().topk(2, 0), x.detach().flip(0), x.detach().reshape(4, 12)
    _ = torch.cat([x.detach(), setting.floats(3, 6)]), x.detach().t() @ x.detach()
    _ = torch.bernoulli(x.detach()), x.detach().sort(0), x.detach().normal_()
    _ = torch.where(x.detach() > 0.5, x.detach(), 0.0), x.detach().masked_fill(x.detach() > 0.5, 0.0)


def indices(setting):
    x = setting.floats(12, 6, placements=[Shard(0)])
    places = setting.ids(8, 12, [Replicate()])
    _ = x.index_select(0, places), x[places]
    sharded = setting.ids(8, 12, [Shard(0)])
    _ = x[sharded], x.gather(0, setting.ids(12, 2, [Shard(0)], shape=(2, 6)))
    y = setting.floats(12, 6, placements=[Shard(1)])
    _ = y[places], y.index_add(0, places, setting.floats(8, 6))


def lookups(setting):
    for of_table in ([Shard(0)], [Shard(1)], [Replicate()], [Shard(0, sizes=[3, 0, 8, 1])]):
        for of_ids in ([Shard(0)], [Replicate()]):
            table = setting.floats(12, 4, placements=of_table, requires_grad=True)
            ids = setting.ids(8, 12, of_ids, n_parts=1 if of_ids == [Replicate()] else N_RANKS)
            F.embedding(ids, table).square().sum().backward()
            rows = F.embedding(setting.ids(8, 12, of_ids), table.detach())
            rows.redistribute(placements=[Shard(0)]).sum().redistribute(placements=[Replicate()])
    on_grid = setting.floats(12, 4, mesh=setting.grid, placements=[Shard(0), Shard(1)], requires_grad=True)
    for of_ids in ([Shard(0), Replicate()], [Replicate(), Replicate()], [Shard(0), Shard(0)]):
        F.embedding(setting.ids(8, 12, of_ids, mesh=setting.grid), on_grid).sum().backward()


def bags(setting):
    for of_table in ([Shard(0)], [Shard(1)], [Replicate()]):
        for of_ids in ([Shard(0)], [Replicate()]):
            for mode in ("sum", "mean", "max"):
                table = setting.floats(12, 4, placements=of_table, requires_grad=True)
                ids = setting.ids(16, 12, of_ids, shape=(8, 2))
                F.embedding_bag(ids, table, mode=mode).sum().backward()


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, n_words=37, width=16):
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_parallel(model, mesh):
    plan = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel()}
    for i in range(len(model.blocks)):
        plan[f"blocks.{i}.norm"] = SequenceParallel()
        plan[f"blocks.{i}.up"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"blocks.{i}.down"] = RowwiseParallel(output_layouts=Shard(1))
    plan["head"] = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    return parallelize_module(model, mesh, plan)


def train(setting, model, n_parts):
    ids = spread(16, 37, n_parts, setting.device_type).view(n_parts, 2, -1).transpose(0, 1).reshape(2, 8)
    targets = torch.zeros(16, dtype=torch.long, device=setting.device_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        with loss_parallel():
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), targets)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def tensor_parallel_training(setting):
    model = tensor_parallel(setting.model(Model), setting.line)
    train(setting, model, n_parts=N_RANKS)


def fully_sharded_training(setting):
    model = tensor_parallel(setting.model(Model), setting.grid["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=setting.grid["dp"])
    fully_shard(model, mesh=setting.grid["dp"])
    train(setting, model, n_parts=2)


def fully_sharded_alone(setting):
    for mesh in (setting.line, setting.grid):
        model = setting.model(lambda: nn.Sequential(Block(), Block(), nn.Linear(16, 3)))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.rand(5, 16, device=setting.device_type)).float().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def experts(setting):
    matrices = setting.floats(8, 6, 6, placements=[Shard(0)], requires_grad=True)
    for plain in (False, True):
        tokens = setting.floats(16, 6, placements=[Shard(0)], requires_grad=True)
        weights = setting.floats(16, 2, placements=[Shard(0)], requires_grad=True)
        part = torch.arange(8, device=setting.device_type).view(4, 2) % 8  # choices go round
        chosen = sw.DTensor.from_local(part, setting.line, [Shard(0)])
        given = [tokens, chosen, weights]
        if plain:
            given = [each.to_local().detach().requires_grad_(each.requires_grad) for each in given]
        routed = dispatch_tokens(*given, experts=matrices)
        rows = F.grouped_mm(routed.rows, matrices, offs=routed.offs) * routed.weights[:, None]
        combine_tokens(rows, routed).sum().backward()


def tables(setting):
    shapes = {"a": (40, 8), "b": (8, 8), "c": (100, 4), "d": (4, 8)}
    combiners = {"a": "sum", "b": "mean", "c": "none", "d": "max"}
    configs = [sw.TableConfig(name, *shape, combiner=combiners[name]) for name, shape in shapes.items()]
    for options in (
        {"strategy": "basic"},
        {"strategy": "memory_balanced", "column_slice_threshold": 100},
        {"strategy": "memory_optimized", "row_slice_threshold": 300},
        {"strategy": "memory_optimized", "data_parallel_threshold": 60},
    ):
        for is_sparse in (False, True):
            layer = sw.DistributedEmbedding(configs, mesh=setting.line, sparse=is_sparse, **options)
            ids = {name: spread(12, n_rows, 1, setting.device_type).view(6, 2) for name, (n_rows, _) in shapes.items()}
            for _ in range(2):
                sum(each.sum() for each in layer(ids).values()).backward()
                layer.zero_grad()
            if not is_sparse:
                optimizer = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1)
                sum(each.sum() for each in layer(ids).values()).backward()
                optimizer.close()


CASES = {
    each.__name__: each
    for each in (
        moves,
        moves_on_a_grid,
        moves_with_gradients,
        between_slices,
        from_parts,
        operators,
        indices,
        lookups,
        bags,
        tensor_parallel_training,
        fully_sharded_training,
        fully_sharded_alone,
        experts,
        tables,
    )
}


def recorded(case, setting):
    """The communications of a case: those that are counted, and all. Both in the order in which they began."""
    torch.manual_seed(0)
    reader = _C.EventReader("test")
    reader.open()
    try:
        CASES[case](setting)
    finally:
        reader.close()
    facts = [
        [e.collective, e.op, e.n_ranks, e.bytes_sent, e.bytes_received, e.is_asked_for] for e in reader.collectives()
    ]
    others = sorted(
        [e.collective, e.op, e.bytes_sent]
        for e in reader.communications()
        if e.collective not in ("connect", "share memory")
    )
    return {"collectives": facts, "communications": others}


def write(folder):
    rank = dist.get_rank()
    setting = Setting("cpu")
    for case in CASES:
        with open(os.path.join(folder, f"{case}-{rank}.json"), "w") as file:
            json.dump(recorded(case, setting), file)


if __name__ == "__main__":
    run_parts({"write": write})
