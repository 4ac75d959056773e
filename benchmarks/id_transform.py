"""Raw 64-bit ids to rows of a table: ms per call with known ids, with a tenth of new ids, and in evaluation. It also shows rank 0's CPU
time, on which other programs of the machine have less effect.

    torchrun --nproc-per-node 4 benchmarks/id_transform.py [--rows 1000000] [--ids 100000]

At first, half of the rows have an id. Each rank draws its own ids among these, so many occur twice. ExactMapping on all ranks is compared
with a Python dict per rank, without eviction or messages. On one rank it is also compared with TorchRec's MCHManagedCollisionModule with
LRU eviction in every step, if TorchRec is installed (see benchmarks/embedding_torchrec.py).
"""

import argparse
import logging
import time
import warnings

import embedding_torchrec
import torch
import torch.distributed as dist
from comparison import aligned
from sides import machine_line
from turns import median, min_and_median, ms_in_turns

import shardwise as sw
from shardwise.id_transform import ExactMapping


class Ids:
    """Batches of one rank: known ids, and the same ids with every tenth replaced by a new one."""

    def __init__(self, options):
        draw = torch.Generator().manual_seed(0)
        self.known = torch.randint(-(2**62), 2**62, (options.rows // 2,), generator=draw)
        self._own = torch.Generator().manual_seed(1 + dist.get_rank())
        self._n = options.ids

    def batch(self, n_new=0):
        ids = self.known[torch.randint(len(self.known), (self._n,), generator=self._own)]
        ids[:n_new] = torch.randint(-(2**62), 2**62, (n_new,), generator=self._own)
        return ids


class Timed:
    """A side's calls, each with the next batch, and the processor time of each."""

    def __init__(self, call, batches):
        self._call, self._batches, self.ms = call, batches, []

    def __call__(self):
        start = time.process_time_ns()
        self._call(next(self._batches))
        self.ms.append((time.process_time_ns() - start) / 1e6)


def dict_of(known):
    rows = {}
    for id_ in known.tolist():
        rows[id_] = len(rows)
    return lambda ids: torch.tensor([rows.setdefault(id_, len(rows)) for id_ in ids.tolist()])


def torchrec_of(known, n_rows):
    from torchrec import JaggedTensor
    from torchrec.modules.mc_modules import LRU_EvictionPolicy, MCHManagedCollisionModule

    module = MCHManagedCollisionModule(
        zch_size=n_rows,
        device=torch.device("cpu"),
        eviction_policy=LRU_EvictionPolicy(),
        eviction_interval=1,
        input_hash_size=2**62,
    )

    def call(ids):
        lengths = torch.ones(len(ids), dtype=torch.int64)
        return module({"ids": JaggedTensor(values=ids.abs(), lengths=lengths)})["ids"].values()

    for part in known.chunk(5):
        call(part)
    return module, call


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    n_ranks = dist.get_world_size()
    ids = Ids(options)
    mapping = ExactMapping(options.rows, sw.init_device_mesh("cpu", (n_ranks,)))
    for part in ids.known.chunk(5):
        mapping(part)
    plain = dict_of(ids.known)
    sides = {"ExactMapping": (mapping, mapping), "a dict per rank": (None, plain)}
    if n_ranks == 1 and embedding_torchrec.is_installed():
        sides["TorchRec's MCH"] = torchrec_of(ids.known, options.rows)
    rows = [("", "", "min ms", "median ms", "/ExactMapping", "/ExactMapping", "processor ms")]
    for name, n_new, trains in (
        ("known", 0, True),
        ("a tenth new", options.ids // 10, True),
        ("only looked up", 0, False),
    ):
        for module, _ in sides.values():
            if module is not None:
                module.train(trains)
        batches = iter([ids.batch(n_new) for _ in range((options.repeats + 1) * len(sides))])
        calls = {side: Timed(call, batches) for side, (_, call) in sides.items()}
        for call in calls.values():
            call()
        ms = ms_in_turns(calls, options.repeats)
        rows += [
            (name, side, *min_and_median(ms[side], ms["ExactMapping"], 1), f"{median(calls[side].ms):.1f}")
            for side in sides
        ]
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"{options.ids:,} ids per rank on {n_ranks} rank(s), {options.rows:,} rows, half of them with an id before"
        )
        print("\n".join(aligned(rows)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
