"""Distributed tensors: one logical tensor whose pieces live on the ranks of a device mesh.

    mesh = init_device_mesh("cpu", (4,))
    table = distribute_tensor(torch.rand(10, 3), mesh, [Shard(0)])      # 3, 3, 3 and 1 rows
    (table * 2).sum().backward()                                        # any operator of torch

Names and signatures equal those of torch.distributed.tensor, also in the modules `parallel`, `experimental`, `debug`, `placement_types` and
`device_mesh`. torch's placements and meshes are also accepted. Start ranks with torchrun, or as threads with shardwise.testing.run_ranks.
"""

import atexit

import torch

from shardwise import _torch_check  # noqa: F401  first: it names a torch that does not fit

# isort: split
from shardwise import _C, _build_facts, debug, device_mesh, experimental, placement_types, testing
from shardwise._C import (
    BlockShard,
    EnumerableShard,
    Layout,
    Partial,
    Placement,
    Plan,
    RaggedShard,
    Replicate,
    Shard,
    ShardMetadata,
    accumulate_gradients,
    cache_counters,
    communication_policy,
    implicit_replication,
    plan_redistribution,
    redistribute_many,
    redistribution_counters,
    register_rule,
)
from shardwise._handed_over import give_texts_a_hash, hand_over
from shardwise.debug import CommDebugMode, explain, profile, step_report
from shardwise.device_mesh import DeviceMesh, init_device_mesh, rebuild_mesh, rebuild_related
from shardwise.distribute_module import distribute_module
from shardwise.dtensor import DTensor, distribute_tensor, rebuild_dtensor
from shardwise.factories import empty, full, linspace, logspace, ones, rand, randn, zeros
from shardwise.interop import from_torch, to_torch
from shardwise.live import watch_if_asked

__all__ = [
    "BlockShard", "CommDebugMode", "DTensor", "DeviceMesh", "EnumerableShard", "Layout", "Partial", "Placement", "Plan", "RaggedShard",
    "Replicate", "Shard", "ShardMetadata", "accumulate_gradients", "cache_counters", "communication_policy", "debug", "device_mesh",
    "distribute_module", "distribute_tensor", "empty", "experimental", "explain", "from_torch", "full", "implicit_replication",
    "init_device_mesh", "linspace", "logspace", "ones", "placement_types", "plan_redistribution", "profile", "rand", "randn",
    "redistribute_many", "redistribution_counters", "register_rule", "step_report", "testing", "to_torch", "zeros",
]  # fmt: skip

__version__ = _build_facts.VERSION

# torch.load(weights_only=True) may call these.
torch.serialization.add_safe_globals(
    [*placement_types.KINDS, ShardMetadata, rebuild_dtensor, rebuild_mesh, rebuild_related]
)
give_texts_a_hash()
hand_over()
atexit.register(_C.forget_world)  # runs after the exit handlers that the program registers later; needs no world

if _build_facts.LAYERS:
    from shardwise import _layers
    from shardwise._layers import *  # noqa: F403

    __all__ += _layers.__all__
else:
    from shardwise._handed_over import refuse

    globals().update(__getattr__=refuse)
    vars(_C).update(__getattr__=refuse)

watch_if_asked()
