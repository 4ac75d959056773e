"""Seeing what a program does: who holds what, and what is sent."""

from shardwise._C import CommEvent, OpRecord
from shardwise.debug.comm_counts import CommCounts
from shardwise.debug.comm_mode import CommDebugMode
from shardwise.debug.explanation import explain
from shardwise.debug.flight import dump
from shardwise.debug.pictures import picture, visualize_sharding
from shardwise.live import watch

__all__ = [
    "CommCounts",
    "CommDebugMode",
    "CommEvent",
    "OpRecord",
    "dump",
    "explain",
    "picture",
    "visualize_sharding",
    "watch",
]
