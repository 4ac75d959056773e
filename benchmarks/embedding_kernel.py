"""benchmarks/embedding.py --kernel: pooled and unpooled lookups on one rank, without messages: torch's kernels, fbgemm's, Shardwise's.

Shardwise's kernel is called as programs call it, through a DTensor on a mesh of one rank. The column "one id" shows the time that this adds
to a call: it repeats a forward of one id. The table has as many rows as a rank has in embedding.py, and as many ids. "fused" backwards add
the gradient, times a rate, to the rows, and do not keep it; torch has no such backward. The sides take turns in changing orders, because a
side finds its table in the cache behind one that uses little memory. The fastest of all turns counts. The side fbgemm-gpu-cpu runs if it is
installed (see embedding_torchrec.py).
"""

import time
import warnings

import embedding_torchrec as torchrec
import torch
import torch.nn.functional as F
from comparison import aligned, write_json
from embedding_problem import LEARNING_RATE, draw_ids
from embedding_sides import has_fused_optimizers
from redistribute import best_us, number
from sides import PLAIN, SHARDWISE, machine_line, world_of_one
from turns import orders

import shardwise

N_ROWS, SHAPE = 50_000, (4096, 20)
WIDTHS, KINDS = (64, 128), ("uniform", "zipf")
HEADER = ("forward ms", "/torch", "backward ms", "/torch", "one id us")


class Side:
    """A lookup in a table and its derivative: `ids` and `grad` in the form that the side needs, a call, and a function that resets it."""

    def __init__(self, look_up, table, place=lambda tensor: tensor, is_fused=False):
        self.look_up, self.table, self.place, self.is_fused = look_up, table, place, is_fused

    def prepare(self, ids, grad):
        self.ids, self.grad, self.one = self.place(ids), self.place(grad), self.place(ids[:1, :1].contiguous())

    def turn(self):
        """The milliseconds of a forward and of a backward."""
        start = time.perf_counter()
        result = self.look_up(self.ids, self.table)
        middle = time.perf_counter()
        result.backward(self.grad)
        end = time.perf_counter()
        self.last = result.detach()
        if not self.is_fused:
            self.last_grad, self.table.grad = self.table.grad, None
        return torch.tensor([middle - start, end - middle]) * 1e3

    def one_id_us(self, repeats):
        with torch.no_grad():
            return best_us(lambda: self.look_up(self.one, self.table), repeats, per_batch=20)


def bag(ids, table):
    return F.embedding_bag(ids, table, mode="sum")


def fbgemm_sides(values):
    """fbgemm's tables want ids and offsets in one list each; these of bags of one length are made once."""
    warnings.simplefilter("ignore")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as tables
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    n_rows, width = values.shape
    fused = tables.SplitTableBatchedEmbeddingBagsCodegen(
        [(n_rows, width, EmbeddingLocation.HOST, tables.ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=LEARNING_RATE,
    )
    fused.split_embedding_weights()[0].data.copy_(values)
    dense = tables.DenseTableBatchedEmbeddingBagsCodegen([(n_rows, width)], use_cpu=True)
    dense.weights.data.copy_(values.view(-1))
    offsets = {}

    def look_up(module):
        def call(ids, _):
            if ids.shape not in offsets:
                offsets[ids.shape] = torch.arange(0, ids.numel() + 1, ids.shape[1])
            return module(ids.view(-1), offsets[ids.shape])

        return call

    return {
        "fbgemm": Side(look_up(dense), dense.weights),
        "fbgemm, fused SGD": Side(look_up(fused), None, is_fused=True),
    }


def shardwise_sides(look_up, values, mesh):
    def place(tensor):
        return shardwise.DTensor.from_local(tensor, mesh, [shardwise.Replicate()])

    def table():
        return shardwise.DTensor.from_local(values.clone(), mesh, [shardwise.Shard(0)]).requires_grad_()

    sides = {SHARDWISE: Side(look_up, table(), place)}
    if has_fused_optimizers():
        fused = Side(look_up, table(), place, is_fused=True)
        fused.optimizer = shardwise.optim.FusedSGD([fused.table], lr=LEARNING_RATE)
        sides[f"{SHARDWISE}, FusedSGD"] = fused
    return sides


def sides_of(look_up, values, mesh):
    sides = {PLAIN: Side(look_up, values.clone().requires_grad_()), **shardwise_sides(look_up, values, mesh)}
    if look_up is bag and torchrec.is_installed():
        sides |= fbgemm_sides(values)
    return sides


def check(sides):
    """Checks the results of each side's first turn, on the same table."""
    plain = sides[PLAIN]
    for name, side in sides.items():
        last = side.last.to_local() if isinstance(side.last, shardwise.DTensor) else side.last
        torch.testing.assert_close(last, plain.last, rtol=1e-5, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        if not side.is_fused:
            grad = side.last_grad.full_tensor() if hasattr(side.last_grad, "full_tensor") else side.last_grad
            torch.testing.assert_close(grad.view_as(plain.last_grad), plain.last_grad, rtol=1e-4, atol=1e-3)


def measure(title, sides, repeats):
    for side in sides.values():
        side.turn()
    check(sides)
    best = {name: torch.full((2,), float("inf")) for name in sides}
    for _, order in zip(range(repeats), orders(sides)):
        for name in order:
            best[name] = torch.minimum(best[name], sides[name].turn())
    one = {name: side.one_id_us(repeats) for name, side in sides.items()}
    lines = []
    for name, times in best.items():
        (forward, backward), over = times.tolist(), (times / best[PLAIN]).tolist()
        lines.append((name, *map(number, (forward, over[0], backward, over[1], one[name]))))
    print("", *aligned([(title, *HEADER), *lines]), sep="\n", flush=True)
    return {"title": title, "ms": {name: times.tolist() for name, times in best.items()}, "one id us": one}


def compare_kernels(args):
    figures = []
    with world_of_one():
        mesh = shardwise.init_device_mesh("cpu", (1,))
        print(
            f"{machine_line()}; {N_ROWS:,} rows of float32, ids {'x'.join(map(str, SHAPE))}; fastest of {args.repeats}"
        )
        if not torchrec.is_installed():
            print(f"fbgemm-gpu-cpu: {torchrec.HOW_TO_INSTALL}")
        for look_up, words in ((bag, "sums of 20"), (F.embedding, "rows")):
            for width in WIDTHS:
                values = torch.randn(N_ROWS, width, generator=torch.Generator().manual_seed(0))
                for kind in KINDS:
                    sides = sides_of(look_up, values, mesh)
                    ids = draw_ids(kind, N_ROWS, SHAPE)
                    grad = torch.ones(*(SHAPE[:1] if look_up is bag else SHAPE), width)
                    for side in sides.values():
                        side.prepare(ids, grad)
                    figures.append(measure(f"{words}, D={width}, {kind}", sides, args.repeats))
    write_json(args.json, {"figures": figures})
