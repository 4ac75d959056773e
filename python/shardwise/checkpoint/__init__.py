"""Checkpoints. torch.distributed.checkpoint saves and loads our tensors, of any layout, to any other; this adds what it lacks.

    import torch.distributed.checkpoint as dcp
    from shardwise.checkpoint import FileSystemWriter

    dcp.save(state_dict, storage_writer=FileSystemWriter("folder"))    # what was in the folder stays whole until this is
    dcp.load(state_dict, checkpoint_id="folder")

FileSystemWriter(path): torch's, for folders that hold a checkpoint already.
"""

from shardwise.checkpoint.file_system_writer import FileSystemWriter

__all__ = ["FileSystemWriter"]
