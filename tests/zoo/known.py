"""Outcomes of the zoo, and the failures that are expected, with their reasons."""

EQUAL = "equal"
NO_PLAN = "none"
LEFT_OUT = "left out"

# transformers' "packed_colwise" and "packed_rowwise" shard weights as _StridedShard over a mesh of one dim. The list is empty once such
# placements exist.
STRIDED = "its plan asks for _StridedShard on a mesh of one dim"
WITH_STRIDED_PLANS = []

KNOWN = {
    (
        "squeezebert",
        "fully_shard",
    ): "its encoder calls `layer.forward`, which runs no hooks; torch's fully_shard fails, too",
    **{(name, "tp_plan"): STRIDED for name in WITH_STRIDED_PLANS},
}


def expected_failure(name: str, way: str) -> str:
    """The reason why a failure is expected, or an empty text."""
    return KNOWN.get((name, way), "")
