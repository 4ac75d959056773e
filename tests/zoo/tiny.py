"""Tiny models of transformers: a config by rules of its fields' names, a model of random weights, and its arguments."""

import dataclasses
import functools
import re

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 67  # neither 2 nor 3 ranks divide it
LARGEST = 3_000_000  # elements of a model's parameters

# The first pattern that fits a field's whole name gives its value.
RULES = [
    (r"(\w+_)?vocab_size|n_vocab|vocab_size_per_layer_input", VOCABULARY),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|model_dim|hidden_dim|projection_dim|decoder_hidden_size", 32),
    (r"embedding_size|word_embed_proj_dim|embedding_dim|width|attention_hidden_size|entity_emb_size", 32),
    (r"(encoder|decoder)_hidden_size|dim_model|projection_size|out_hidden_size|text_hidden_size|language_dim", 32),
    (
        r"moe_(\w+_)?intermediate_size|(moe_)?shared_expert_intermediate_size|expert_ffn_hidden_size|moe_ffn_hidden_size",
        16,
    ),
    (r"(\w+_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|intermediate_size_mlp)|(d|dim)_inner", 40),
    (r"num_(\w+_)?layers|n_layers?|(en|de)coder_layers|num_blocks|layers|depth", 2),
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|num_global_key_value_heads", 2),
    (r"(\w+_)?(num_attention_heads|attention_heads)|n_heads?|num_heads|num_(en|de)coder_heads", 4),
    (r"qk_nope_head_dim|v_head_dim|index_head_dim|(kv|q)_lora_rank", 8),
    (r"qk_rope_head_dim|rotary_dim", 4),
    (r"(\w+_)?head_dim|d_kv|attention_key_size|head_size", 8),
    (r"max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx|seq_length|context_length", 64),
    (r"max_(source|target)_positions", 64),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_moe_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|moe_top_k", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts|first_k_dense_replace|n_group|topk_group", 1),
    (r"image_size|input_size", 16),
    (r"patch_size", 4),
    (r"num_mel_bins|input_feat_per_channel", 8),
    (r"conv_(dim|channels)", 24),
    (r"pad_token_id", 0),
    (r"bos_token_id|decoder_start_token_id|cls_token_id", 1),
    (r"eos_token_id|sep_token_id", 2),
    (r"sliding_window|attention_window_size|local_attention", 4),
    (
        r"(?!token_)(\w*(dropout|dropout_prob|pdrop|dropout_rate|drop_path_rate|layerdrop|_drop))|router_jitter_noise",
        0.0,
    ),
    (r"apply_spec_augment|mask_(time|feature)_prob", 0),
]

# Fields that the rules do not find, by architecture.
HYBRID = {"num_hidden_layers": 4}  # layers of more than one kind
OWN = {
    "gemma3n_text": HYBRID,
    "lfm3": HYBRID, "qwen3_5_moe_text": HYBRID, "qwen3_5_text": HYBRID, "qwen3_next": HYBRID, "recurrent_gemma": HYBRID,
    "gemma4_text": {**HYBRID, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_unified_text": {**HYBRID, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"]},
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "t5": {"decoder_start_token_id": 0}, "longt5": {"decoder_start_token_id": 0}, "udop": {"decoder_start_token_id": 0},
    "switch_transformers": {"decoder_start_token_id": 0}, "pop2piano": {"decoder_start_token_id": 0},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "mamba_d_state": 8},
    "zamba": {"layers_block_type": ["mamba", "hybrid"]},
    "neomme": {"head_dim": 16},
    "longcat_flash": {"head_dim": 4},
    "pvt_v2": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "mobilenet_v1": {"depth_multiplier": 0.25}, "mobilenet_v2": {"depth_multiplier": 0.25},
    "swiftformer": {"embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "levit": {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "jamba": {**HYBRID, "attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "attn_layer_indices": [1]},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mellum": {"num_mtp_layers": 1},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"], "num_buckets": 2},
    "xlm": {"emb_dim": 32, "bos_index": 0, "eos_index": 1, "pad_index": 2},
    "flaubert": {"emb_dim": 32, "bos_index": 0, "eos_index": 1, "pad_index": 2},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "xlstm": {"qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "dots3_note_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "funnel": {"d_inner": 40, "block_sizes": [1, 1]},
    "swin": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "embed_dim": 16},
    "swinv2": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "embed_dim": 16},
    "donut-swin": {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "embed_dim": 16},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "regnet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
    "bit": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4},
    "focalnet": {"embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3]},
    "poolformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "image_size": 64},
    "segformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
    "mobilevit": {"hidden_sizes": [8, 16, 24], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32], "num_attention_heads": 2, "image_size": 64},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 32},
    "hiera": {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "image_size": [16, 16], "num_query_pool": 1, "patch_size": [7, 7],
              "masked_unit_size": [2, 2]},
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 1, 1]},
    "wav2vec2-bert": {"feature_projection_input_dim": 8},
    "audio-spectrogram-transformer": {"max_length": 32},
}  # fmt: skip

TEXT = torch.tensor([[5, 9, 61, 31, 7, 14, 22, 9], [3, 8, 8, 40, 11, 66, 12, 6]])
PICTURES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).mul(50).sin().view(2, 3, 16, 16)
WAVES = torch.linspace(0, 60, 2 * 2000).sin().view(2, 2000)
SPECTRA = torch.linspace(-1, 1, 2 * 8 * 32).mul(90).cos().view(2, 8, 32)
CLASSES = torch.tensor([0, 1])

# transformers' table of classes, and the arguments of forward.
TASKS = {
    "SEQ_TO_SEQ_CAUSAL_LM": {"input_ids": TEXT, "labels": TEXT},
    "SPEECH_SEQ_2_SEQ": {"input_features": SPECTRA, "labels": TEXT},
    "CAUSAL_LM": {"input_ids": TEXT, "labels": TEXT},
    "MASKED_LM": {"input_ids": TEXT, "labels": TEXT},
    "ZERO_SHOT_IMAGE_CLASSIFICATION": {"input_ids": TEXT, "pixel_values": PICTURES, "return_loss": True},
    "IMAGE_TEXT_TO_TEXT": {"input_ids": TEXT, "labels": TEXT},
    "IMAGE_CLASSIFICATION": {"pixel_values": PICTURES, "labels": CLASSES},
    "CTC": {"input_values": WAVES, "labels": TEXT[:, :2]},
    "AUDIO_CLASSIFICATION": {"input_values": SPECTRA.transpose(1, 2), "labels": CLASSES},
}
OWN_ARGUMENTS = {
    "whisper": {"input_features": torch.linspace(-1, 1, 2 * 8 * 128).mul(90).cos().view(2, 8, 128), "labels": TEXT},
    **{
        name: {"pixel_values": PICTURES.repeat(1, 1, 4, 4), "labels": CLASSES}
        for name in ("pvt_v2", "segformer", "efficientnet", "levit")
    },
    **{
        name: {"input_features": SPECTRA.transpose(1, 2), "labels": TEXT[:, :2]}
        for name in ("lasr_ctc", "parakeet_ctc")
    },
    "imagegpt": {"input_ids": TEXT, "labels": CLASSES},
    "speech_to_text": {"input_features": SPECTRA.transpose(1, 2), "labels": TEXT},
    "wav2vec2-bert": {"input_features": SPECTRA.transpose(1, 2), "labels": TEXT[:, :2]},
    "mobilevit": {"pixel_values": PICTURES.repeat(1, 1, 4, 4), "labels": CLASSES},
    "pvt": {"pixel_values": PICTURES.repeat(1, 1, 4, 4), "labels": CLASSES},
    "moonshine": {"input_values": WAVES, "labels": TEXT},
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    name: str  # transformers' `model_type`
    class_name: str
    task: str

    @property
    def arguments(self):
        given = OWN_ARGUMENTS.get(self.name, TASKS[self.task])
        return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in given.items()}

    def make(self):
        """The model of random weights. It is in eval mode: dropout would draw other numbers on shards. Raises ValueError for a large one."""
        size = sum(parameter.numel() for parameter in self.make_on("meta").parameters())
        if size > LARGEST:
            raise ValueError(f"the tiny config still has {size:,} parameters")
        torch.manual_seed(0)
        return self.make_on("cpu").eval()

    def make_on(self, device):
        config_class = CONFIG_MAPPING[self.name]
        config = config_class(**{**tiny_fields(config_class), **OWN.get(self.name, {})})
        with torch.device(device):
            return getattr(transformers, self.class_name)(config)


@functools.cache
def architectures():
    """By name: each architecture once, as the model of the first task that it is in."""
    found = {}
    for task in TASKS:
        for name, class_name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            found.setdefault(
                name, Architecture(name, class_name if isinstance(class_name, str) else class_name[0], task)
            )
    return found


def tiny_fields(config_class):
    """The arguments of a tiny config, by RULES; the other fields keep their defaults."""
    fields = {}
    for field in dataclasses.fields(config_class):
        value = next((value for pattern, value in RULES if re.fullmatch(pattern, field.name)), None)
        default = None if field.default is dataclasses.MISSING else field.default
        if isinstance(default, (list, tuple)) and default and all(type(entry) is int for entry in default):
            fields[field.name] = [value] * len(default) if value is not None else default
        elif value is not None and default is not None and type(default) in (int, float, bool):
            fields[field.name] = type(default)(value)
        elif value is not None and default is None:
            fields[field.name] = value
        elif field.name.endswith(("_token_id", "_token_index")) and isinstance(default, int) and default >= VOCABULARY:
            fields[field.name] = 5
    if "qk_rope_head_dim" in fields:  # latent attention: a key of two parts for every query head
        fields.pop("head_dim", None)
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    for name, part in (getattr(config_class, "sub_configs", None) or {}).items():
        if part.__name__ != "AutoConfig":
            fields[name] = tiny_fields(part)
        elif (default := getattr(default_config(config_class), name, None)) is not None:
            fields[name] = {"model_type": default.model_type, **tiny_fields(type(default))}
    return fields


@functools.cache
def default_config(config_class):
    """The config of the published sizes: it says which configs its parts have."""
    return config_class()
