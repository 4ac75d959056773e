"""DLRM (Naumov et al., 2019) on four ranks: 26 categorical features behind one DistributedEmbedding, 13 dense ones, clicks to predict.

The tables have the sizes of the Criteo Terabyte data set in MLPerf's benchmark, scaled down to at most 20,000 rows. No package
contains that data, so samples are generated: ids by Zipf's law with exponent 1.1, normal dense features, and clicks by a hidden model
of both, which the training has to learn. Tables are trained by fused row-wise Adagrad in the backward, the dense part by Adam under
DistributedDataParallel. The checkpoint is loaded on another number of ranks, and the loss is the same.

    $ torchrun --nproc-per-node 4 examples/dlrm.py --folder /tmp/shardwise-dlrm
    26 tables on 4 ranks, memory_optimized: a step takes 2.6 ms on rank 0, the most loaded; none takes less than 2.5 ms (ratio 1.052)
    rank 0 is the heaviest: 4,326,720 bytes, the mean is 4,187,344

    rank  groups  slices      bytes  lookups  exchanged    time
       0       2      19  4,326,720   16,366  2,180,973  2.6 ms
       1       2      20  4,122,048    4,955  1,405,018  1.8 ms
       2       2      21  4,147,840    5,418  1,436,517  1.8 ms
       3       2      20  4,152,768    4,168  1,351,517  1.7 ms

    table  rank 0         rank 1           rank 2            rank 3
    C1     rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C2     rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C3     columns 0:16   ·                ·                 ·
    C4     ·              ·                ·                 columns 0:16
    C5     rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C6     whole          whole            whole             whole
    C7     ·              ·                ·                 columns 0:16
    C8     ·              columns 0:16     ·                 ·
    C9     whole          whole            whole             whole
    C10    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C11    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C12    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C13    whole          whole            whole             whole
    C14    ·              ·                columns 0:16      ·
    C15    ·              ·                columns 0:16      ·
    C16    whole          whole            whole             whole
    C17    whole          whole            whole             whole
    C18    ·              ·                columns 0:16      ·
    C19    whole          whole            whole             whole
    C20    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C21    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C22    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C23    rows 0:5000    rows 5000:10000  rows 10000:15000  rows 15000:20000
    C24    ·              columns 0:16     ·                 ·
    C25    whole          whole            whole             whole
    C26    whole          whole            whole             whole
    bytes  ████████ 100%  ████████ 95%     ████████ 96%      ████████ 96%
    time   ████████ 100%  ██████ 69%       ██████ 70%        █████ 66%

    step   0  loss 0.6816
    step  50  loss 0.4715
    step 100  loss 0.4552
    evaluated on 4 ranks: loss 0.4552, AUC 0.8520
    samples per second: ...
    $ torchrun --nproc-per-node 2 examples/dlrm.py --folder /tmp/shardwise-dlrm --resume
    resumed on 2 ranks: loss 0.4552, AUC 0.8520
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

# Rows of the categorical features of Criteo Terabyte, as MLPerf's DLRM has them.
CRITEO = [
    45833188,
    36746,
    17245,
    7413,
    20243,
    3,
    7114,
    1441,
    62,
    29275261,
    1572176,
    345138,
    10,
    2209,
    11267,
    128,
    4,
    974,
]
CRITEO += [14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35]
MOST_ROWS, WIDTH, N_DENSE = 20_000, 16, 13
BATCH, STEPS, SKEW = 2048, 101, 1.1
EVALUATED = 8  # batches that no training sees


class Clicks:
    """Samples by number, the same on any number of ranks."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.heights = [min(rows, MOST_ROWS) for rows in CRITEO]
        self._of_ids = [torch.randn(rows, generator=generator) for rows in self.heights]
        self._of_dense = torch.randn(N_DENSE, generator=generator)
        self._chances = [torch.arange(1, rows + 1).double().pow(-SKEW).cumsum(0) for rows in self.heights]

    def batch(self, number: int) -> tuple[Tensor, list[Tensor], Tensor]:
        """This rank's part: dense features [samples, 13], ids [samples] by table, clicks [samples]."""
        generator = torch.Generator().manual_seed(1 + number)
        dense = torch.randn(BATCH, N_DENSE, generator=generator)
        score = dense @ self._of_dense / N_DENSE**0.5
        ids = []
        for chances, effects in zip(self._chances, self._of_ids, strict=True):
            drawn = torch.rand(BATCH, generator=generator, dtype=torch.float64) * chances[-1]
            ids.append(torch.searchsorted(chances, drawn).clamp_max(len(effects) - 1))
            score = score + effects[ids[-1]] / len(self.heights) ** 0.5
        clicks = torch.bernoulli(torch.sigmoid(2 * score - 1), generator=generator)
        rank, n_ranks = dist.get_rank(), dist.get_world_size()
        own = slice(rank * BATCH // n_ranks, (rank + 1) * BATCH // n_ranks)
        return dense[own], [each[own] for each in ids], clicks[own]


class DLRM(nn.Module):
    def __init__(self, heights: list[int], **plan: object) -> None:
        super().__init__()
        tables = [sw.TableConfig(f"C{t + 1}", rows, WIDTH, skew=SKEW) for t, rows in enumerate(heights)]
        self.embedding = sw.DistributedEmbedding(tables, **plan)
        with torch.no_grad():
            for table in self.embedding.parameters():
                table.mul_(len(table) ** -0.5)
        self.bottom = nn.Sequential(nn.Linear(N_DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        n_pairs = (len(heights) + 1) * len(heights) // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + n_pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(len(heights) + 1, len(heights) + 1, -1), persistent=False)

    def forward(self, dense: Tensor, ids: list[Tensor]) -> Tensor:
        """Logits [samples]. The ids travel while the dense features are computed."""
        lookup = self.embedding.start(ids)
        hidden = self.bottom(dense)
        vectors = torch.stack([hidden, *lookup.wait()], 1)
        products = vectors @ vectors.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([hidden, crossed], 1)).squeeze(1)


def mean_over_ranks(value: Tensor) -> float:
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def area_under_curve(scores: Tensor, clicks: Tensor) -> float:
    """The chance that a click scores above a sample without one, over all ranks' samples (Mann and Whitney, 1947)."""
    every: list[Tensor] = []
    for values in (scores, clicks):
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values.contiguous())
        every.append(torch.cat(parts))
    order = every[0].argsort()
    places = torch.empty(len(order)).index_copy_(0, order, torch.arange(1.0, len(order) + 1))
    n = every[1].sum()
    return ((places[every[1] > 0].sum() - n * (n + 1) / 2) / (n * (len(order) - n))).item()


@torch.no_grad()
def evaluated(model: nn.Module, clicks: Clicks) -> tuple[float, float]:
    """Loss and area under the curve of batches that no training sees."""
    logits, wanted = [], []
    for number in range(EVALUATED):
        dense, ids, clicked = clicks.batch(10_000 + number)
        logits.append(model(dense, ids))
        wanted.append(clicked)
    loss = nn.functional.binary_cross_entropy_with_logits(torch.cat(logits), torch.cat(wanted))
    return mean_over_ranks(loss), area_under_curve(torch.cat(logits), torch.cat(wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="read it, and evaluate")
    parser.add_argument("--strategy", default="memory_optimized")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clicks = Clicks()
    say = print if dist.get_rank() == 0 else lambda *_: None

    model = DLRM(
        clicks.heights, strategy=options.strategy, data_parallel_threshold=2048, row_slice_threshold=MOST_ROWS * WIDTH
    )
    trained = DistributedDataParallel(model)  # leaves the tables to their layer
    optimizers = [
        sw.optim.FusedAdagrad(model.embedding.parameters(), lr=0.05, row_wise=True),
        torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=3e-3),
    ]
    if options.resume:
        weights, states = get_state_dict(model, optimizers)
        dcp.load({"model": weights, "optimizers": states}, storage_reader=FileSystemReader(options.folder))
        set_state_dict(model, optimizers, model_state_dict=weights, optim_state_dict=states)
        loss, area = evaluated(model, clicks)
        say(f"resumed on {dist.get_world_size()} ranks: loss {loss:.4f}, AUC {area:.4f}")
        dist.destroy_process_group()
        return

    summary, _, by_rank = str(model.embedding.plan).strip().split("\n\n")  # between them: why each table is where it is
    say(f"{summary}\n\n{by_rank}\n\n{model.embedding.plan.picture()}")
    start = time.perf_counter()
    for step in range(STEPS):
        dense, ids, clicked = clicks.batch(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(trained(dense, ids), clicked)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 50 == 0:
            mean = mean_over_ranks(loss)
            say(f"step {step:3}  loss {mean:.4f}")
    seconds = time.perf_counter() - start
    loss, area = evaluated(model, clicks)
    say(f"evaluated on {dist.get_world_size()} ranks: loss {loss:.4f}, AUC {area:.4f}")
    say(f"samples per second: {BATCH * STEPS / seconds:,.0f}")
    if options.folder:
        weights, states = get_state_dict(model, optimizers)
        dcp.save({"model": weights, "optimizers": states}, storage_writer=FileSystemWriter(options.folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
