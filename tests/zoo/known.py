"""Outcomes of the zoo, and the failures that are expected, with their reasons."""

EQUAL = "equal"
NO_PLAN = "none"
LEFT_OUT = "left out"

# transformers' "packed_colwise" and "packed_rowwise" shard weights as _StridedShard over a mesh of one dim. The list is empty once such
# placements exist.
STRIDED = "its plan asks for _StridedShard on a mesh of one dim"
WITH_STRIDED_PLANS = [
    "aria_text",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "jamba",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lara_mini",
    "llama4_text",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "mistral4",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "sarvam_moe",
    "solar_open",
]

# torch's own DTensors fail in the same way: `--ways "tp_plan on torch"`.
PLANS_THAT_FAIL = {
    "apertus": "the plan shards the input of `act_fn`, and does not sum the gradients of its parameters; with torch's DTensors they are wrong, too",
    "doge": "the plan shards the heads, but not the attention's mask; with torch's DTensors the sizes do not match, too",
    "hrm_text": "the gradients of its plan are wrong with torch's DTensors, too",
}
PLANS_THAT_FAIL["apertus1p5_text"] = PLANS_THAT_FAIL["apertus"]

KNOWN = {
    ("squeezebert", "fully_shard"): "its encoder calls `layer.forward`, which runs no hooks",
    **{(name, "tp_plan"): STRIDED for name in WITH_STRIDED_PLANS},
    **{(name, "tp_plan"): reason for name, reason in PLANS_THAT_FAIL.items()},
}


def expected_failure(name: str, way: str) -> str:
    """The reason why a failure is expected, or an empty text."""
    return KNOWN.get((name, way), "")
