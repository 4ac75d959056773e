"""What saving and loading refuse."""

from error_cases import case

TITLE = "Checkpoints"
SETUP = """
import tempfile
from pathlib import Path
import torch.distributed.checkpoint as dcp
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

mesh = sw.init_device_mesh("cpu", (2,))
folder = Path(tempfile.mkdtemp())  # each rank saves and loads alone here
x = {"x": torch.arange(1000.0)}
dcp.save(x, storage_writer=FileSystemWriter(folder), no_dist=True)
file = next(folder.glob("*.distcp"))
"""
CASES = [
    case(
        "a folder without a checkpoint",
        'dcp.load(x, storage_reader=FileSystemReader(folder / "none"), no_dist=True)',
        AssertionError,
        in_torchs_words=True,
    ),
    case(
        "metadata that is corrupt",
        '(folder / ".metadata").write_bytes(b"garbage")\ndcp.load(x, storage_reader=FileSystemReader(folder), no_dist=True)',
        AssertionError,
        in_torchs_words=True,
    ),
    case(
        "a file that was cut off",
        "file.write_bytes(file.read_bytes()[:1000])\ndcp.load(x, storage_reader=FileSystemReader(folder), no_dist=True)",
        RuntimeError,
    ),
    case(
        "a save by a thread over the group that training sends over",
        'dcp.async_save({"x": sw.ones(4, device_mesh=mesh, placements=[Shard(0)])}, checkpoint_id=folder / "async")',
        ValueError,
        of_processes=True,
    ),
    case(
        "a file of other bytes",
        "file.write_bytes(bytes(file.stat().st_size))\ndcp.load(x, storage_reader=FileSystemReader(folder), no_dist=True)",
        RuntimeError,
    ),
    case(
        "entries that nobody asks for",
        "dcp.load({}, storage_reader=FileSystemReader(folder, strict=True), no_dist=True)",
        RuntimeError,
    ),
    case(
        "a checkpoint of another model",
        """
        other = {"x": sw.zeros(7, device_mesh=mesh), "y": sw.zeros(7, device_mesh=mesh)}
        dcp.load(other, storage_reader=FileSystemReader(folder), no_dist=True)
        """,
        RuntimeError,
    ),
    case(
        "a checkpoint where one is",
        "dcp.save(x, storage_writer=FileSystemWriter(folder, overwrite=False), no_dist=True)",
        RuntimeError,
    ),
    case(
        "metadata of each rank's own",
        'dcp.save(x, storage_writer=FileSystemWriter(folder / "new"), no_dist=True, use_collectives=False)',
        ValueError,
    ),
    case(
        "a piece that this rank does not hold",
        """
        from torch.distributed.checkpoint.metadata import MetadataIndex
        sw.zeros(6, 2, device_mesh=mesh).__get_tensor_shard__(MetadataIndex("x", (1, 1)))
        """,
        ValueError,
    ),
    case(
        "several pieces of one name in a safetensors file",
        """
        from torch.distributed.checkpoint import HuggingFaceStorageWriter
        ranges = sw.ones(4, 5, device_mesh=mesh, placements=[RaggedShard((0, 1), (1, 2))])
        dcp.save({"x": ranges}, storage_writer=HuggingFaceStorageWriter(str(folder / "st")), no_dist=True)
        """,
        ValueError,
    ),
]
