"""Plain functions on pieces of distributed tensors, shardings of operators, and attention over sharded sequences."""

from shardwise._C import implicit_replication
from shardwise.experimental.local_functions import local_map
from shardwise.experimental.registered_shardings import register_sharding
from shardwise.experimental.sharded_sequences import context_parallel

__all__ = ["context_parallel", "implicit_replication", "local_map", "register_sharding"]
