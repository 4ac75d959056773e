"""Checkpoints. torch.distributed.checkpoint saves DTensors of any layout and loads them into any other. This module adds two classes:

    import torch.distributed.checkpoint as dcp
    from shardwise.checkpoint import FileSystemReader, FileSystemWriter

    dcp.save(state_dict, storage_writer=FileSystemWriter("folder"))    # keeps the folder's old checkpoint until this one is complete
    dcp.load(state_dict, storage_reader=FileSystemReader("folder"))    # checks all files, then reads only what this rank needs

Both are subclasses of torch's classes of the same names. DTensors whose local tensors are of a class of their own, as quantised weights are, go
through inner_tensors():

    dcp.save(inner_tensors(state_dict), checkpoint_id="folder")
"""

from shardwise.checkpoint.file_system_reader import FileSystemReader
from shardwise.checkpoint.file_system_writer import FileSystemWriter
from shardwise.checkpoint.inner_tensors import inner_tensors

__all__ = ["FileSystemReader", "FileSystemWriter", "inner_tensors"]
