"""Seeing what a program does: who holds what, and what is sent."""

from shardwise._C import CommEvent, OpRecord
from shardwise.debug.comm_counts import CommCounts
from shardwise.debug.comm_mode import CommDebugMode
from shardwise.debug.explanation import explain
from shardwise.debug.flight import dump
from shardwise.debug.picture import Picture
from shardwise.debug.pictures import diff, picture, visualize_mesh, visualize_sharding
from shardwise.live import watch

__all__ = [
    "CommCounts",
    "CommDebugMode",
    "CommEvent",
    "OpRecord",
    "Picture",
    "diff",
    "dump",
    "explain",
    "picture",
    "visualize_mesh",
    "visualize_sharding",
    "watch",
]
