"""Run by test_devices.py under torchrun: device_program.py DEVICE PART FOLDER. The same parts over Gloo ("cpu") and over NCCL ("cuda").

More ranks than GPUs share them. NCCL refuses two ranks of one host on one GPU, so each rank says that it is a host of its own
(NCCL_HOSTID), and they reach each other through the loopback interface.
"""

import copy
import itertools
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from layouts import CASES, TABLES
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import shardwise as sw
from shardwise import Partial, Replicate, Shard

DEVICE = sys.argv[1]
N_RANKS = 4


def connect():
    if DEVICE == "cuda":
        rank = os.environ["RANK"]
        if torch.cuda.device_count() < N_RANKS:
            os.environ |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        torch.cuda.set_device(int(rank) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    torch.backends.cuda.matmul.allow_tf32 = False


def on_device(*sizes, seed=0, dtype=torch.float64):
    return torch.randn(*sizes, dtype=dtype, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def line():
    return sw.init_device_mesh(DEVICE, (N_RANKS,))


def grid():
    return sw.init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))


def expect_same(ours, dense, **tolerance):
    ours = ours.full_tensor() if isinstance(ours, sw.DTensor) else ours
    assert ours.device.type == DEVICE
    torch.testing.assert_close(ours, dense, **tolerance)


def layouts(folder):
    """Every kind of placement: distributed, gathered, printed, and its gradient."""
    for case in CASES:
        mesh, whole = sw.DeviceMesh(DEVICE, case.ranks), case.dense().to(DEVICE)
        tensor = sw.distribute_tensor(whole, mesh, case.placements).requires_grad_()
        repr(tensor)
        full = tensor.full_tensor()
        if mesh.get_coordinate() is not None:
            expect_same(full, whole)
            (full * full).sum().backward()
            expect_same(tensor.grad, 2 * whole)


def moves(folder):
    """From every layout of a line to every other, plain, asynchronous, many at once, and to other meshes."""
    mesh, x = line(), torch.arange(77.0, device=DEVICE).view(11, 7)
    of_line = [[Shard(0)], [Shard(1)], [Shard(0, [1, 0, 7, 3])], [Partial()], [Partial("max")], [Replicate()]]
    pairs = list(itertools.product(of_line, [target for target in of_line if not target[0].is_partial()]))
    for source, target in pairs:
        expect_same(sw.distribute_tensor(x, mesh, source).redistribute(placements=target), x)
    started = [
        sw.distribute_tensor(x + i, mesh, source).redistribute(placements=target, async_op=True)
        for i, (source, target) in enumerate(pairs)
    ]
    for i, tensor in reversed(list(enumerate(started))):
        expect_same(tensor, x + i)
    tensors = [sw.distribute_tensor(x + i, mesh, source).requires_grad_() for i, (source, _) in enumerate(pairs)]
    moved = sw.redistribute_many(tensors, [target for _, target in pairs])
    sum((tensor.sum() * (i + 1)).full_tensor() for i, tensor in enumerate(moved)).backward()
    for i, (tensor, result) in enumerate(zip(tensors, moved, strict=True)):
        expect_same(result, x + i)
        if not tensor.placements[0].is_partial("max"):
            expect_same(tensor.grad, torch.full_like(x, i + 1))
    lower, upper = sw.DeviceMesh(DEVICE, [0, 1]), sw.DeviceMesh(DEVICE, [3, 2])
    for source, placements, other, target in [
        (mesh, [Shard(0)], grid(), [Shard(1), Shard(0)]),
        (mesh, [Partial()], sw.DeviceMesh(DEVICE, [3, 1, 0, 2]), [Shard(0)]),
        (mesh, [Shard(0)], lower, [Shard(1)]),
        (lower, [Shard(0)], upper, [Shard(0)]),
    ]:
        tensor = sw.distribute_tensor(x, source, placements, src_data_rank=None)
        expect_same(tensor.redistribute(other, target).redistribute(mesh, [Replicate()]).to_local(), x)


def operators(folder):
    """Products, norms, softmax, indices, sorts and attention of sharded operands, with their gradients."""
    mesh = line()
    rows, keep = on_device(11, 6, seed=1), on_device(11, 6, seed=2) > 0
    indices = torch.tensor([3, 0, 10, 3, 7], device=DEVICE)
    calls = {
        "mm": lambda x, w: x @ w.t(),
        "linear": lambda x, w: F.linear(x, w).relu(),
        "softmax": lambda x, w: x.softmax(0) + w.softmax(1).sum(),
        "layer_norm": lambda x, w: F.layer_norm(x, (6,), w[0]),
        "norm": lambda x, w: x.norm(dim=1) * w.norm(),
        "sort": lambda x, w: x.sort(0).values * w[0],
        "cumsum": lambda x, w: x.cumsum(0) + w.sum(0),
        "topk": lambda x, w: x.topk(2, 1).values + w.sum(),
        "index": lambda x, w: x[indices] @ w.t(),
        "masked_fill": lambda x, w: x.masked_fill(keep, 0.5) * w.mean(),
        "cat": lambda x, w: torch.cat([x, w, x * 2]),
        "loss": lambda x, w: F.cross_entropy(x @ w.t(), (x[:, 0] > 0).long()),
        "attention": lambda x, w: F.scaled_dot_product_attention(
            x.view(1, 11, 2, 3).transpose(1, 2), *[w.view(1, 5, 2, 3).transpose(1, 2)] * 2
        ),
    }
    for name, call in calls.items():
        for of_x, of_w in itertools.product(
            [Shard(0), Shard(1), Shard(0, [4, 0, 6, 1]), Replicate()], [Shard(0), Shard(1), Replicate()]
        ):
            dense = [rows.clone().requires_grad_(), on_device(5, 6, seed=3).requires_grad_()]
            expected = call(*dense)
            expected.square().sum().backward()
            ours = [
                sw.distribute_tensor(leaf.detach(), mesh, [placement]).requires_grad_()
                for leaf, placement in zip(dense, (of_x, of_w), strict=True)
            ]
            try:
                with sw.implicit_replication():
                    result = call(*ours)
                    result.square().sum().backward()
                expect_same(result.detach(), expected.detach())
                for leaf, theirs in zip(ours, dense, strict=True):
                    expect_same(leaf.grad, theirs.grad)
            except Exception as error:
                error.add_note(f"{name} of {of_x} and {of_w}")
                raise


def fused_attention(folder):
    """The fused kernels in half precision, causal and not, where batch, heads or queries are sharded."""
    mesh = line()
    for dim, is_causal, dtype in itertools.product((0, 1, 2), (False, True), (torch.bfloat16, torch.float32)):
        dense = [(on_device(4, 8, 256, 64, seed=i) / 2).to(dtype).requires_grad_() for i in range(3)]
        expected = F.scaled_dot_product_attention(*dense, is_causal=is_causal)
        expected.float().square().sum().backward()
        ours = [
            sw.distribute_tensor(leaf.detach(), mesh, [Replicate() if dim == 2 and i else Shard(dim)]).requires_grad_()
            for i, leaf in enumerate(dense)
        ]
        result = F.scaled_dot_product_attention(*ours, is_causal=is_causal)
        result.float().square().sum().backward()
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        expect_same(result.detach(), expected.detach(), **tolerance)
        for leaf, theirs in zip(ours, dense, strict=True):
            expect_same(leaf.grad, theirs.grad, **tolerance)


def lookups(folder):
    """Rows and bags of tables in every layout, with dense gradients and with each fused optimizer."""
    ids = torch.tensor([[3, 3, 9], [0, 1, 5], [3, 10, 0], [2, 2, 2]], device=DEVICE)
    mesh = line()
    for case in TABLES:
        if case.n_ranks != N_RANKS:
            continue
        whole = case.dense().to(DEVICE).requires_grad_()
        table_mesh = sw.DeviceMesh(DEVICE, case.ranks)
        if table_mesh.size() != N_RANKS:
            continue
        table = sw.distribute_tensor(whole.detach(), table_mesh, case.placements).requires_grad_()
        for placement in ([Shard(0)], [Replicate()]) if table_mesh.ndim == 1 else ():
            whole.grad = table.grad = None
            ours = sw.distribute_tensor(ids, table_mesh, placement)
            for call in (
                F.embedding,
                lambda i, t: F.embedding_bag(i, t, mode="mean"),
                lambda i, t: F.embedding_bag(i, t, mode="sum"),
            ):
                expected, result = call(ids, whole), call(ours, table)
                expect_same(result.detach(), expected.detach())
                expected.square().sum().backward()
                result.square().sum().backward()
                expect_same(table.grad, whole.grad)

    def train(table, optimizer, of_ids):
        for step in range(3):
            optimizer.zero_grad()
            F.embedding((of_ids + step) % 11, table).square().sum().backward()
            optimizer.step()
        return table.detach()

    start = on_device(11, 6, seed=5)
    for ours, theirs in [
        (lambda tables: sw.optim.FusedSGD(tables, lr=0.1), lambda tables: torch.optim.SGD(tables, lr=0.1)),
        (lambda tables: sw.optim.FusedAdagrad(tables, lr=0.1), lambda tables: torch.optim.Adagrad(tables, lr=0.1)),
    ]:
        for placement in (Shard(0, [5, 0, 4, 2]), Shard(1)):
            table = nn.Parameter(sw.distribute_tensor(start, mesh, [placement]))
            trained = train(table, ours([table]), sw.distribute_tensor(ids, mesh, [Shard(0)]))
            whole = nn.Parameter(start.clone())
            expect_same(trained, train(whole, theirs([whole]), ids))


def distributed_embedding(folder):
    """Tables of several kinds train as dense ones do; one of them lies in files under a cache on the device."""
    rows = [60, 9, 200]
    torch.manual_seed(0)
    layer = sw.DistributedEmbedding(
        [sw.TableConfig(f"t{i}", n, 8) for i, n in enumerate(rows)],
        mesh=line(),
        storage={"t2": sw.FileStorage(folder, cache_rows=64)},
    )
    dense = [nn.Parameter(torch.from_numpy(table).to(DEVICE)) for table in layer.get_weights(all_ranks=True)]
    ours, theirs = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1), torch.optim.Adagrad(dense, lr=0.1)

    def batch(rank, step):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        return [torch.randint(n, (6, 2), generator=generator).to(DEVICE) for n in rows]

    for step in range(3):
        sum(vectors.square().sum() for vectors in layer(batch(dist.get_rank(), step))).backward()
        ours.step()
        theirs.zero_grad()
        for rank in range(N_RANKS):
            ids = batch(rank, step)
            sum(F.embedding_bag(i, t, mode="sum").square().sum() for i, t in zip(ids, dense, strict=True)).backward()
        theirs.step()
    trained = layer.get_weights(all_ranks=True)
    for table, whole in zip(trained, dense, strict=True):
        expect_same(torch.from_numpy(table).to(DEVICE), whole.detach(), rtol=1e-4, atol=1e-4)
    layer.set_weights([-table for table in trained])
    for table, before in zip(layer.get_weights(all_ranks=True), trained, strict=True):
        assert (table == -before).all()


def fully_sharded(folder):
    """Four processes train as one does on all rows, in float32 and with bfloat16 in the layers; a checkpoint goes on."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(300, 500), nn.Tanh(), nn.Linear(500, 301), nn.Tanh(), nn.Linear(301, 3)).to(DEVICE)
    rows = on_device(3, 8, 300, dtype=torch.float32)

    def train(model, part):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for batch in rows:
            optimizer.zero_grad()
            model(part(batch)).float().square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    dense = copy.deepcopy(start)
    train(dense, lambda batch: batch)
    named = sw.init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    for mesh, mixed in [(line(), None), (named, None), (line(), torch.bfloat16)]:
        model = copy.deepcopy(start)
        for layer in (model[0], model[2], model):
            options = {"mp_policy": MixedPrecisionPolicy(param_dtype=mixed)} if mixed else {}
            sw.fully_shard(layer, mesh=mesh, **options)
        train(model, lambda batch: batch.chunk(4)[dist.get_rank()])
        tolerance = {"rtol": 0.2, "atol": 0.05} if mixed else {"rtol": 1e-3, "atol": 1e-4}
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            expect_same(ours.detach(), theirs.detach(), **tolerance)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    other = sw.fully_shard(copy.deepcopy(start), mesh=line())
    state = other.state_dict()
    dcp.load({"model": state}, checkpoint_id=folder)
    other.load_state_dict(state)
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        expect_same(ours.detach(), theirs.full_tensor().detach())


def tensor_parallel(folder):
    """A transformer layer, split over two ranks by two, gives the dense values, gradients and a checkpointed dropout's numbers."""
    torch.manual_seed(0)
    mesh = grid()
    dense = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=torch.float64, device=DEVICE)
    model = copy.deepcopy(dense)
    plan = {
        "linear1": sw.parallel.ColwiseParallel(),
        "linear2": sw.parallel.RowwiseParallel(),
    }
    sw.parallel.parallelize_module(model, mesh["tp"], plan)
    x = on_device(4, 7, 16)
    expected, result = dense(x), model(x)
    expect_same(result.detach(), expected.detach())
    expected.square().sum().backward()
    result.square().sum().backward()
    for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
        expect_same(ours.grad, theirs.grad)
    y = sw.ones(64, 8, device_mesh=mesh, placements=[Shard(0), Shard(1)], requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(lambda z: F.dropout(z, 0.5) * z, y, use_reentrant=False)
    out.sum().backward()
    expect_same(y.grad, 2 * out.detach().full_tensor())
    draws = []
    for placements in ([Shard(0), Shard(1)], [Replicate(), Replicate()]):
        torch.manual_seed(5)
        draws.append(sw.rand(9, 6, device_mesh=mesh, placements=placements).full_tensor())
    expect_same(*draws)


def compiled(folder):
    """A compiled function of DTensors gives what the eager one gives."""
    mesh = line()
    x, w = (sw.distribute_tensor(on_device(8, 8, seed=i), mesh, [Shard(i)]).requires_grad_() for i in range(2))

    def call(a, b):
        return torch.nn.functional.gelu(a @ b).softmax(1)

    results = []
    for function in (call, torch.compile(call)):
        x.grad = w.grad = None
        out = function(x, w)
        out.square().sum().backward()
        results.append([tensor.full_tensor().detach() for tensor in (out, x.grad, w.grad)])
    for ours, theirs in zip(*results, strict=True):
        expect_same(ours, theirs)


def lone_calls(folder):
    """What a rank reads alone sends nothing; the next collective of all works."""
    x = sw.distribute_tensor(torch.arange(36.0, device=DEVICE).view(6, 6), line(), [Shard(0)])
    if dist.get_rank() == 0:
        repr(x), str(x), x.to_local().tolist(), copy.deepcopy(x), x.device, f"{x}"
    expect_same(x * 2, torch.arange(36.0, device=DEVICE).view(6, 6) * 2)


if __name__ == "__main__":
    part, folder = sys.argv[2:]
    connect()
    globals()[part](folder)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"{part}-{os.environ['RANK']}\n")
