"""Checkpoints. torch.distributed.checkpoint saves and loads our tensors, of any layout, to any other; this adds what it lacks.

    import torch.distributed.checkpoint as dcp
    from shardwise.checkpoint import FileSystemReader, FileSystemWriter

    dcp.save(state_dict, storage_writer=FileSystemWriter("folder"))    # what was in the folder stays whole until this is
    dcp.load(state_dict, storage_reader=FileSystemReader("folder"))    # reads what this rank wants, checks all files before

FileSystemWriter(path): torch's, for folders that hold a checkpoint already.
FileSystemReader(path): torch's, for other numbers of ranks and large tensors.
"""

from shardwise.checkpoint.file_system_reader import FileSystemReader
from shardwise.checkpoint.file_system_writer import FileSystemWriter

__all__ = ["FileSystemReader", "FileSystemWriter"]
