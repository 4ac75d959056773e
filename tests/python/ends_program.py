"""Run by test_ends.py under torchrun, two ranks: ends_program.py PART FOLDER ends in its own way after it printed PART-RANK."""

import atexit
import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

import shardwise as sw
from shardwise import Replicate, Shard


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def ones(mesh, **options):
    return sw.ones(6, 2, device_mesh=mesh, placements=[Shard(0)], **options)


def globals_and_atexit(mesh):
    """Tensors, an unfinished move and a graph live to the end, and a handler uses them."""
    global kept
    x = ones(mesh, requires_grad=True)
    kept = [mesh, x, (x * 2).sum(), x.detach().redistribute(placements=[Replicate()], async_op=True)]
    atexit.register(lambda: say(f"at exit {(x * 2).to_local().sum().item()} {mesh}"))


def forked_children(mesh):
    """Children that do nothing, that read tensors, and that end by themselves or at once."""
    x = ones(mesh)
    for end in (lambda: os._exit(0), lambda: sys.exit(0)):
        child = os.fork()
        if child == 0:
            assert (x + 1).to_local().tolist() == [[2, 2]] * 3
            end()
        assert os.waitpid(child, 0)[1] == 0
    assert x.full_tensor().sum().item() == 12


class Table(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index, self.table.to_local()[0]


def workers(mesh):
    """A DataLoader's workers, forked and spawned, read this rank's part."""
    for context in ("fork", "spawn"):
        loader = DataLoader(Table(ones(mesh)), num_workers=1, multiprocessing_context=context)
        assert [row.tolist() for _, row in loader] == [[[1, 1]]] * 4


def child(x, mesh, answers):
    try:
        x.full_tensor()
    except ValueError as error:
        refusal = str(error)
    own = (type(x).__name__, x.placements, x.to_local().tolist(), (x * 3).to_local().sum().item())
    answers.put((own, repr(mesh), mesh.get_rank(), x.device_mesh == mesh, dist.is_initialized(), refusal))


def spawned(mesh):
    """A process gets a tensor and a mesh; the ranks' own groups go on as before."""
    context = mp.get_context("spawn")
    answers = context.Queue()
    x = ones(mesh)
    process = context.Process(target=child, args=(x, mesh, answers))
    process.start()
    own, text, rank, is_one, is_initialized, refusal = answers.get(timeout=100)
    process.join()
    assert process.exitcode == 0
    assert own == ("DTensor", (Shard(0),), [[1, 1]] * 3, 18), own
    assert (text, rank, is_one, is_initialized) == (repr(mesh), dist.get_rank(), True, False)
    assert "a mesh that was sent to a process that is no rank" in refusal, refusal
    assert x.sum().item() == 12


if __name__ == "__main__":
    part, _ = sys.argv[1:]
    dist.init_process_group("gloo")
    globals()[part](sw.init_device_mesh("cpu", (2,)))
    say(f"{part}-{os.environ['RANK']}")
    if part != "globals_and_atexit":
        dist.barrier()
        dist.destroy_process_group()
