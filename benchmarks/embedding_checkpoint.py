"""Time, bytes read and memory to save the tables of a DistributedEmbedding, and to load them on another number of ranks.

    torchrun --nproc-per-node 4 benchmarks/embedding_checkpoint.py save FOLDER
    torchrun --nproc-per-node 3 benchmarks/embedding_checkpoint.py load FOLDER

The tables are 6 x 64 MiB by default (--rows), with row-wise Adagrad's state: two are sharded by rows over all ranks, and four are whole on
one rank. Loading is measured with shardwise.checkpoint.FileSystemReader and with torch's reader. "peak" is the most resident memory that
loading adds on a rank; the tables themselves are allocated before. The target is 64 MiB.
"""

import argparse
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

MIB = 1 << 20


class Peak:
    """The peak resident memory of this process in a `with` block, minus the memory at its start. It is read every millisecond."""

    def __enter__(self) -> "Peak":
        self._before = self._most = self._resident()
        self._is_open = True
        self._watch = threading.Thread(target=self._run)
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        self._watch.join()
        self.n_bytes = self._most - self._before

    def _run(self) -> None:
        while self._is_open:
            self._most = max(self._most, self._resident())
            time.sleep(0.001)

    @staticmethod
    def _resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def bytes_of_files() -> dict[str, int]:
    """The bytes that this process has read from and written to files."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(n) for name, n in lines}


def measured(label: str, work: Callable[[], object], own: int) -> None:
    dist.barrier()
    before, start = bytes_of_files(), time.perf_counter()
    with Peak() as peak:
        work()
    seconds, after = time.perf_counter() - start, bytes_of_files()
    numbers = torch.tensor(
        [seconds, own / MIB, *((after[kind] - before[kind]) / MIB for kind in ("rchar", "wchar")), peak.n_bytes / MIB]
    )
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(
            f"{label:20} {numbers[0]:8.2f} {'':1}" + " ".join(f"{number:9.1f}" for number in numbers[1:].tolist()),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "load"])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=262_144, help="of each of six tables of 64 columns")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    configs = [sw.TableConfig(f"t{t}", options.rows - (t >= 2), 64) for t in range(6)]
    threshold = options.rows * 64
    layer = sw.DistributedEmbedding(configs, row_slice_threshold=threshold, column_slice_threshold=threshold)
    optimizer = sw.optim.FusedAdagrad(layer.parameters(), row_wise=True)
    sums = {name: optimizer.state[table]["sum"] for name, table in layer.tables.items()}
    with torch.no_grad():
        for each in sums.values():
            each.zero_()  # memory that nobody wrote to is not resident
    state = {"tables": layer.state_dict(), "sums": sums}
    own = sum(values.nbytes for t in range(len(configs)) for values, _, _ in layer.pieces(t))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, of the slowest or largest rank; MiB")
        print(f"{'':20} {'seconds':>8} {'own':>10} {'read':>9} {'written':>9} {'peak':>9}")
    if options.what == "save":
        measured("FileSystemWriter", lambda: dcp.save(state, storage_writer=FileSystemWriter(options.folder)), own)
    else:
        for label, reader in (
            ("shardwise", FileSystemReader(options.folder)),
            ("torch", dcp.FileSystemReader(options.folder)),
        ):
            measured(label, lambda reader=reader: dcp.load(state, storage_reader=reader), own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
