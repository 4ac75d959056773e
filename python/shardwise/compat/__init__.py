"""Unchanged programs of torch.distributed.tensor on Shardwise.

    python -m shardwise.compat train.py --lr 0.1                             # or -m a.module
    torchrun --nproc-per-node 4 -m shardwise.compat train.py --lr 0.1

runs train.py, in which `torch.distributed.tensor`, its submodules, `torch.distributed._tensor`, torch.distributed's meshes and
torch.distributed.fsdp's `fully_shard` are Shardwise's. So they are in the libraries that it imports, and in processes that it spawns.
A program can do so itself, best before it imports them:

    import shardwise.compat
    shardwise.compat.install()

docs/coming_from_torch.md says what is different.
"""

from shardwise.compat.installation import install, uninstall

__all__ = ["install", "uninstall"]
