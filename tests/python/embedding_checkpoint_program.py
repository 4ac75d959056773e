"""Run by test_embedding_checkpoints.py under torchrun: embedding_checkpoint_program.py PARTS FOLDER, see run_parts()."""

import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrun import run_parts

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

SHAPES = {"by_rows": (6000, 64), "whole": (3000, 128), "small": (20, 8)}
OPTIONS = {"row_slice_threshold": 6000 * 64, "data_parallel_threshold": 160, "column_slice_threshold": 1 << 40}


def layer_of(shapes=SHAPES, **options):
    torch.manual_seed(1)
    return sw.DistributedEmbedding([sw.TableConfig(n, *s) for n, s in shapes.items()], **{**OPTIONS, **options})


def state_of(layer, optimizer):
    """The tables and the optimizer's state by name."""
    states = {
        f"{name}.{kind}": value
        for name, table in layer.tables.items()
        for kind, value in optimizer.state[table].items()
        if isinstance(value, torch.Tensor)
    }
    return {"tables": layer.state_dict(), "optimizer": states}


def own_bytes(layer):
    return sum(values.nbytes for t in range(len(SHAPES)) for values, _, _ in layer.pieces(t))


def trained():
    layer = layer_of()
    optimizer = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1)
    sum(vectors.sum() for vectors in layer([torch.arange(5) + dist.get_rank() for _ in SHAPES])).backward()
    return layer, optimizer


def values_of(layer):
    return layer.get_weights(all_ranks=True)


def expect_values(layer, expected):
    for array, own in zip(values_of(layer), expected, strict=True):
        np.testing.assert_array_equal(array, own)


def expect_error(call, *texts):
    """On every rank."""
    try:
        call()
    except BaseException as error:  # torch's CheckpointException is no Exception
        for text in texts:
            assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error with {texts}")


def save(folder):
    """Each element is written once, also those that all ranks hold."""
    layer, optimizer = trained()
    dcp.save(state_of(layer, optimizer), storage_writer=FileSystemWriter(f"{folder}/checkpoint"))
    expected = values_of(layer)
    if dist.get_rank() == 0:
        for name, array in zip(SHAPES, expected, strict=True):
            np.save(f"{folder}/{name}.npy", array)
        n_bytes = sum(path.stat().st_size for path in Path(folder, "checkpoint").glob("*.distcp"))
        whole = 2 * sum(rows * columns * 4 for rows, columns in SHAPES.values())
        assert whole <= n_bytes < whole + 100_000, (n_bytes, whole)
    layer.save_weights(f"{folder}/weights")
    layer.export_safetensors("by_rows", f"{folder}/by_rows.safetensors", name="embedding.weight")


def bytes_read():
    """By this process so far, from files."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def load(folder):
    """Each rank reads the bytes of its rows, and hardly more."""
    layer = layer_of(strategy="memory_balanced")
    optimizer = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1)
    state = state_of(layer, optimizer)
    reader = FileSystemReader(f"{folder}/checkpoint", strict=True)
    layer.reset_parameters()
    before = bytes_read()
    dcp.load(state, storage_reader=reader)
    n_bytes = bytes_read() - before
    assert reader.n_bytes_read == 2 * own_bytes(layer), (reader.n_bytes_read, own_bytes(layer))
    assert n_bytes < 2 * own_bytes(layer) + (1 << 20), (n_bytes, own_bytes(layer))
    expected = [np.load(f"{folder}/{name}.npy") for name in SHAPES]
    expect_values(layer, expected)
    layer.reset_parameters()
    layer.set_weights(f"{folder}/weights")
    expect_values(layer, expected)
    for name, table in layer.tables.items():
        assert bool((optimizer.state[table]["sum"].full_tensor() > 0).any()), name


def broken(folder):
    """Checkpoints of other tables, and files that are cut off, garbled or gone: all ranks say so, and nothing changes."""
    layer, optimizer = trained()
    state = state_of(layer, optimizer)
    before = values_of(layer)
    rank = dist.get_rank()

    def expect_untouched(call, *texts):
        expect_error(call, *texts)
        expect_values(layer, before)

    def reload(at, **options):
        return lambda: dcp.load(state, storage_reader=FileSystemReader(f"{folder}/{at}", **options))

    for kind in ("cut", "garbled", "gone", "flipped"):
        if rank == 0:
            shutil.copytree(f"{folder}/checkpoint", f"{folder}/{kind}")
            victim = max(Path(folder, kind).glob("*.distcp"), key=lambda path: path.stat().st_size)
            content = bytearray(victim.read_bytes())
            content[len(content) // 3] ^= 1
            wanted = {"cut": content[: len(content) // 2], "garbled": bytes(len(content)), "flipped": content}
            victim.unlink() if kind == "gone" else victim.write_bytes(wanted[kind])
        dist.barrier()
        expect_untouched(
            reload(kind, verify=kind == "flipped"), "corrupt files in", ".distcp", "Nothing has been loaded"
        )
    if rank == 0:
        Path(folder, "gone", ".metadata").write_bytes(b"\x80")
    dist.barrier()
    expect_untouched(reload("gone"), ".metadata is corrupt")
    expect_untouched(reload("nowhere"), "holds no complete checkpoint")

    extra = {"tables": {"tables.by_rows": layer.tables["by_rows"]}}
    reader = FileSystemReader(f"{folder}/checkpoint", strict=True)
    expect_untouched(
        lambda: dcp.load(extra, storage_reader=reader), "tables.tables.whole", "which the state dict does not have"
    )
    other = layer_of({"by_rows": (6000, 32), "new": (3000, 128), "small": (20, 8)}, row_slice_threshold=6000 * 32)
    others = values_of(other)
    wrong = {"tables": other.state_dict()}
    expect_error(
        lambda: dcp.load(wrong, storage_reader=FileSystemReader(f"{folder}/checkpoint")),
        "It lacks tables.tables.new.",
        "tables.tables.by_rows is [6000, 64] there and [6000, 32] here",
        "tables.tables.whole",
    )
    expect_values(other, others)
    expect_error(
        lambda: other.load_state_dict(layer.state_dict()),
        "It lacks tables.new.",
        "tables.by_rows is [6000, 64] there and [6000, 32] here",
        "It has besides: tables.whole.",
    )
    expect_values(other, others)


def full_disk(folder):
    """Rank 1, and then rank 0, can write no more than 64 KiB per file: all ranks say so, and what was saved before stays whole."""
    layer, optimizer = trained()
    state = state_of(layer, optimizer)
    files = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}

    def limited(rank, call):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        expect_error(call)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        dist.barrier()

    with torch.no_grad():
        layer.tables["by_rows"].add_(1)
    values = values_of(layer)
    limited(1, lambda: dcp.save(state, storage_writer=FileSystemWriter(f"{folder}/checkpoint")))
    limited(0, lambda: layer.save_weights(f"{folder}/weights"))
    limited(0, lambda: layer.export_safetensors("by_rows", f"{folder}/by_rows.safetensors"))
    expect_values(layer, values)
    for path, content in files.items():
        assert path.read_bytes() == content, path
    assert not list(Path(folder).rglob("*.unfinished"))
    load_values(folder)


def killed(folder):
    """Rank 1 is killed while it writes."""
    layer, optimizer = trained()
    with torch.no_grad():
        layer.tables["by_rows"].add_(1)

    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(item)

    writer = FileSystemWriter(f"{folder}/checkpoint")
    dcp.save(state_of(layer, optimizer), storage_writer=writer, planner=Planner())


def load_values(folder):
    layer = layer_of()
    layer.reset_parameters()
    dcp.load({"tables": layer.state_dict()}, storage_reader=FileSystemReader(f"{folder}/checkpoint"))
    expect_values(layer, [np.load(f"{folder}/{name}.npy") for name in SHAPES])


def packed_layouts():
    """By the number of ranks, those that save before others load: by rows, in pieces of columns and rows, by columns, whole."""
    pieces = [
        sw.ShardMetadata([0, 0], [5, 4], 0),
        sw.ShardMetadata([0, 4], [5, 6], 1),
        sw.ShardMetadata([5, 0], [6, 10], 1),
    ]
    return {
        4: sw.Shard(0, sizes=[2, 0, 8, 1]),
        2: sw.EnumerableShard(pieces),
        3: sw.Shard(1),
        1: sw.Replicate(),
    }


def packed(folder):
    """A table of 8-bit rows: quantised by four ranks, then loaded and saved by others, each of which has the same numbers."""
    n_ranks, layouts = dist.get_world_size(), packed_layouts()
    mesh, placements = sw.init_device_mesh("cpu", (n_ranks,)), [layouts[n_ranks]]
    dense = torch.randn(11, 10, generator=torch.Generator().manual_seed(5))
    expected = sw.quantize_rows(sw.distribute_tensor(dense, mesh, placements))
    table = expected
    if n_ranks != 4:
        table = sw.QuantizedTable.zeros(dense.shape, device_mesh=mesh, placements=placements)
        before = list(layouts)[list(layouts).index(n_ranks) - 1]
        dcp.load({"table": table}, storage_reader=FileSystemReader(f"{folder}/packed_{before}"))
    for name, tensor in table.state_dict().items():
        assert torch.equal(tensor.full_tensor(), expected.state_dict()[name].full_tensor()), name
    assert torch.equal(table.dequantize().full_tensor(), expected.dequantize().full_tensor())
    dcp.save({"table": table}, storage_writer=FileSystemWriter(f"{folder}/packed_{n_ranks}"))


def progress(folder):
    """A line on rank 0 where it is asked for, none on the others and none by itself, as stderr is no terminal here."""
    layer = layer_of()
    layer.set_weights(f"{folder}/weights", progress=dist.get_rank() < 2)
    layer.get_weights()


if __name__ == "__main__":
    run_parts(globals())
