"""Tools that show which rank holds which part of a tensor, and which messages are sent."""

from shardwise._C import CommEvent, OpRecord
from shardwise.debug.comm_mode import CommCounts, CommDebugMode
from shardwise.debug.flight_files import dump
from shardwise.debug.layer_times import LayerReport, RankReport, StepReport, step_report
from shardwise.debug.picture import Picture
from shardwise.debug.pictures import diff, picture, visualize_mesh, visualize_sharding
from shardwise.debug.profiling import MergedProfile, explain, profile
from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile
from shardwise.live import watch

__all__ = [
    "CommCounts", "CommDebugMode", "CommEvent", "CommunicationSpan", "LayerReport", "MergedProfile", "OpRecord",
    "OperatorSpan", "Picture", "RankProfile", "RankReport", "StepReport", "diff", "dump", "explain", "picture",
    "profile", "step_report", "visualize_mesh", "visualize_sharding", "watch",
]  # fmt: skip
