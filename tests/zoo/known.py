"""Outcomes of the zoo, and the failures that are expected, with their reasons."""

EQUAL = "equal"
NO_PLAN = "none"
LEFT_OUT = "left out"

# torch's own DTensors fail in the same way: `--ways "tp_plan on torch"`, or "ep_plan on torch".
PLANS_THAT_FAIL = {
    "apertus": "the plan shards the input of `act_fn`, and does not sum the gradients of its parameters; with torch's DTensors they are wrong, too",
    "doge": "the plan shards the heads, but not the attention's mask; with torch's DTensors the sizes do not match, too",
    "esmc": "the plan shards the queries, but not the norm of a whole query; with torch's DTensors the sizes do not match, too",
    "hrm_text": "the gradients of its plan are wrong with torch's DTensors, too",
    "neomme": "the plan shards the heads, but not the scale of each head; with torch's DTensors the sizes do not match, too",
    "qwen3_vl_moe": "its experts' weights are not transposed when they are loaded by a plan, with torch's DTensors neither",
    "sarvam_moe": "its weights are not converted when they are loaded by a plan, with torch's DTensors neither",
    "shieldgemma2": "from_pretrained loses the weights of its language model, on one process, too",
}
PLANS_THAT_FAIL["apertus1p5_text"] = PLANS_THAT_FAIL["apertus"]

KNOWN = {
    ("squeezebert", "fully_shard"): "its encoder calls `layer.forward`, which runs no hooks",
    **{(name, "tp_plan"): reason for name, reason in PLANS_THAT_FAIL.items()},
    **{(name, "ep_plan"): PLANS_THAT_FAIL[name] for name in ("qwen3_vl_moe", "sarvam_moe")},
    ("zaya", "ep_plan"): "it has a plan for its experts alone, which transformers refuses",
}


def expected_failure(name: str, way: str) -> str:
    """The reason why a failure is expected, or an empty text."""
    return KNOWN.get((name, way), "")
