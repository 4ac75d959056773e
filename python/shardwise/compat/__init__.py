"""Runs unchanged programs for torch.distributed.tensor on Shardwise.

    python -m shardwise.compat train.py --lr 0.1                             # or -m a.module
    torchrun --nproc-per-node 4 -m shardwise.compat train.py --lr 0.1

These commands run train.py with Shardwise's names in place of `torch.distributed.tensor`, its submodules, `torch.distributed._tensor`,
torch.distributed's meshes and torch.distributed.fsdp's `fully_shard`. The same holds for the libraries that it imports, and for processes
that it spawns. A program can also do this itself, preferably before it imports other libraries:

    import shardwise.compat
    shardwise.compat.install()

docs/coming_from_torch.md lists the differences.
"""

from shardwise.compat.installation import install, uninstall

__all__ = ["install", "uninstall"]
