"""Tools that show which rank holds which part of a tensor, and which messages are sent."""

from shardwise._C import CommEvent, OpRecord
from shardwise.debug.comm_counts import CommCounts
from shardwise.debug.comm_mode import CommDebugMode
from shardwise.debug.explanation import explain
from shardwise.debug.flight_files import dump
from shardwise.debug.layer_times import LayerReport, RankReport, StepReport, step_report
from shardwise.debug.merged_profile import MergedProfile
from shardwise.debug.picture import Picture
from shardwise.debug.pictures import diff, picture, visualize_mesh, visualize_sharding
from shardwise.debug.profiling import profile
from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile
from shardwise.live import watch

__all__ = [
    "CommCounts", "CommDebugMode", "CommEvent", "CommunicationSpan", "LayerReport", "MergedProfile", "OpRecord",
    "OperatorSpan", "Picture", "RankProfile", "RankReport", "StepReport", "diff", "dump", "explain", "picture",
    "profile", "step_report", "visualize_mesh", "visualize_sharding", "watch",
]  # fmt: skip
