"""Models of transformers as they are, their parameters distributed by a plan of names: forward and gradients equal dense."""

import copy
import re

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

transformers = pytest.importorskip("transformers")

# By the ends of parameters' names, the first that fits: layers by outputs (weight and bias), by inputs (weight), tables by rows,
# experts each on some ranks; the rest is replicated.
PLAN = [
    (
        r"(q|k|v|gate|up|q_proj|k_proj|v_proj|gate_proj|up_proj|query|key|value|wi|wi_0|wi_1|fc1|intermediate\.dense)\.(weight|bias)",
        0,
    ),
    (r"experts\.(gate_up_proj|down_proj)", 0),
    (r"(o|wo|o_proj|out_proj|down_proj|fc2|output\.dense)\.weight", 1),
    (r"(embeddings|embed_tokens|shared|token_embedding|lm_head)\.weight", 0),
]


def placement_of(path):
    dim = next((dim for ends, dim in PLAN if re.search(rf"(^|[._]){ends}$", path)), None)
    return Replicate() if dim is None else Shard(dim)


def distributed(model, mesh, placements_of):
    """By the first of its names each parameter: what two modules share is sharded once."""
    paths = {id(parameter): path for path, parameter in model.named_parameters()}

    def shard(name, module, mesh):
        for parameter_name, parameter in list(module.named_parameters(recurse=False)):
            path = f"{name}.{parameter_name}" if name else parameter_name
            if paths.get(id(parameter)) == path:
                sharded = sw.distribute_tensor(parameter.detach(), mesh, placements_of(path), src_data_rank=None)
                setattr(module, parameter_name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))

    return sw.distribute_module(model, mesh, shard)


SMALL = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
IDS = torch.tensor([[5, 9, 2, 31, 7, 1], [3, 8, 8, 4, 1, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
TEXT = {"input_ids": IDS, "attention_mask": MASK}
PICTURES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).sin().view(2, 3, 16, 16)


def decoder(name, **options):
    config = getattr(transformers, f"{name}Config")(
        **SMALL, num_key_value_heads=2, head_dim=6, pad_token_id=0, bos_token_id=1, eos_token_id=2, **options
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


def bert():
    return transformers.BertModel(transformers.BertConfig(**SMALL, max_position_embeddings=16))


def t5():
    config = transformers.T5Config(
        vocab_size=37, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def vit():
    sizes = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=4))


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=37, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=40, decoder_ffn_dim=40, num_mel_bins=8, max_source_positions=10, max_target_positions=12,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def clip():
    text = {**SMALL, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    vision = {**SMALL, "image_size": 16, "patch_size": 4}
    vision.pop("vocab_size")
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    return transformers.CLIPModel(config)


# how each is made, what it is given, what of its output is summed
MODELS = {
    "Bert": (bert, TEXT, "last_hidden_state"),
    "Llama": (lambda: decoder("Llama"), {**TEXT, "labels": IDS}, "loss"),
    "Qwen2": (lambda: decoder("Qwen2"), {**TEXT, "labels": IDS}, "loss"),
    "Qwen3": (lambda: decoder("Qwen3"), {**TEXT, "labels": IDS}, "loss"),
    "Gemma": (lambda: decoder("Gemma"), {**TEXT, "labels": IDS}, "loss"),
    "Gemma2": (lambda: decoder("Gemma2"), {**TEXT, "labels": IDS}, "loss"),
    "T5": (t5, {**TEXT, "labels": IDS[:, :4]}, "loss"),
    "ViT": (vit, {"pixel_values": PICTURES}, "last_hidden_state"),
    "Whisper": (
        whisper,
        {"input_features": torch.linspace(-1, 1, 2 * 8 * 20).cos().view(2, 8, 20), "labels": IDS[:, :4]},
        "loss",
    ),
    "CLIP": (clip, {**TEXT, "pixel_values": PICTURES, "return_loss": True}, "loss"),
    "Mixtral": (
        lambda: decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
        {**TEXT, "labels": IDS},
        "loss",
    ),
}


def gpt2_of_the_published_vocabulary():
    config = transformers.GPT2Config(vocab_size=50257, n_embd=16, n_layer=1, n_head=4, n_positions=8, bos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def gpt2_placement(path):
    """4 ranks do not divide 50,257 rows. Conv1D holds the transpose of a linear layer's weight."""
    dims = {r"wte\.weight": 0, r"(c_attn|c_fc)\.weight": 1, r"c_proj\.weight": 0, r"(c_attn|c_fc)\.bias": 0}
    return next((Shard(dim) for ends, dim in dims.items() if re.search(rf"{ends}$", path)), Replicate())


def llama_of_six_heads():
    config = transformers.LlamaConfig(**{**SMALL, "num_attention_heads": 6}, num_key_value_heads=2, head_dim=8)
    return transformers.LlamaForCausalLM(config)


def own_plan_placement(path):
    """The placements of transformers' own plan for a Llama, applied by distribute_module."""
    plan = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).tp_plan
    style = plan.get(re.sub(r"\.\d+\.", ".*.", path.removesuffix(".weight")))
    dim = {"colwise": 0, "colwise_gather_output": 0, "embedding_rowwise": 0, "rowwise": 1}.get(style)
    return Replicate() if dim is None else Shard(dim)


def result(model, given, name):
    torch.manual_seed(0)
    out = getattr(
        model(**{name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}),
        name,
    )
    return out if out.dim() == 0 else out.sin().sum()


@pytest.mark.parametrize(("make", "given", "name"), MODELS.values(), ids=MODELS.keys())
def test_a_model_of_plain_ids_is_dense(make, given, name):
    torch.manual_seed(0)
    dense = make().eval()
    kept = copy.deepcopy(dense)
    expected = result(dense, given, name)
    expected.backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = distributed(copy.deepcopy(kept), mesh, lambda path: [placement_of(path)])
        n_sharded = sum(parameter.placements != (Replicate(),) for parameter in model.parameters())
        assert n_sharded > len(list(model.parameters())) / 4
        out = result(model, given, name)
        torch.testing.assert_close(out.full_tensor(), expected.detach(), rtol=1e-4, atol=1e-5)
        out.backward()
        for (name_of, parameter), reference in zip(model.named_parameters(), dense.parameters(), strict=True):
            assert (parameter.grad is None) == (reference.grad is None), name_of
            if reference.grad is not None:
                grad = parameter.grad.full_tensor()
                torch.testing.assert_close(
                    grad, reference.grad, rtol=1e-3, atol=1e-5, msg=lambda text, at=name_of: f"{at}: {text}"
                )

    run_ranks(2, check)


@pytest.mark.parametrize(
    ("make", "placement"),
    [(llama_of_six_heads, own_plan_placement), (gpt2_of_the_published_vocabulary, gpt2_placement)],
    ids=["6 heads and 2 of keys", "GPT-2's 50,257 ids"],
)
def test_ranks_that_divide_neither_heads_nor_ids(make, placement):
    """On 4 ranks. torch's styles refuse these: local attention would get 1.5 heads."""
    torch.manual_seed(0)
    dense = make().eval()
    kept = copy.deepcopy(dense)
    given = {**TEXT, "labels": IDS}
    expected = result(dense, given, "loss")
    expected.backward()

    def check(rank):
        model = distributed(copy.deepcopy(kept), sw.init_device_mesh("cpu", (4,)), lambda path: [placement(path)])
        assert sum(parameter.placements != (Replicate(),) for parameter in model.parameters()) >= 5
        loss = result(model, given, "loss")
        torch.testing.assert_close(loss.full_tensor(), expected.detach(), rtol=1e-4, atol=1e-5)
        loss.backward()
        for (path, parameter), reference in zip(model.named_parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(
                parameter.grad.full_tensor(),
                reference.grad,
                rtol=1e-3,
                atol=1e-5,
                msg=lambda text, at=path: f"{at}: {text}",
            )

    run_ranks(4, check)


GENERATING = {
    "Llama": {},
    "Gemma2": {},
    "T5": {},
    "Llama, beams": {"num_beams": 2},
    "Llama, no cache": {"use_cache": False},
}


@pytest.mark.parametrize("name", GENERATING)
def test_generated_ids_are_plain_and_those_of_the_whole_model(name):
    torch.manual_seed(0)
    dense = MODELS[name.partition(",")[0]][0]().eval()
    options = {"max_new_tokens": 4, "do_sample": False, **GENERATING[name]}
    expected = dense.generate(IDS, attention_mask=MASK, **options)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = distributed(copy.deepcopy(dense), mesh, lambda path: [placement_of(path)])
        ids = model.generate(IDS.clone(), attention_mask=MASK, **options)
        assert type(ids) is torch.Tensor and torch.equal(ids, expected)
        with pytest.raises((ValueError, TypeError), match="different args"):
            model.generate(IDS[:1] + rank, attention_mask=MASK[:1], **options)  # a signature that is compared

    run_ranks(2, check)


def test_a_batch_of_which_each_rank_gives_a_part():
    """Data parallel along one mesh dim, the model sharded along the other: only the batch is wrapped."""
    make, given, name = MODELS["Llama"]
    torch.manual_seed(0)
    dense = make().eval()
    kept = copy.deepcopy(dense)
    given = {key: torch.cat([value, value.flip(1)]) for key, value in given.items()}
    expected = result(dense, given, name)
    expected.backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        model = distributed(copy.deepcopy(kept), mesh, lambda path: [Replicate(), placement_of(path)])
        row = mesh.get_coordinate()[0]
        part = {key: value[2 * row : 2 * row + 2] for key, value in given.items()}
        with pytest.raises((ValueError, TypeError), match="called LlamaForCausalLM with different input_ids"):
            model(**part)
        wrapped = {key: sw.DTensor.from_local(value, mesh, [Shard(0), Replicate()]) for key, value in part.items()}
        loss = model(**wrapped).loss
        torch.testing.assert_close(loss.full_tensor(), expected.detach(), rtol=1e-4, atol=1e-5)
        loss.backward()
        for parameter, reference in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), reference.grad, rtol=1e-3, atol=1e-5)

    run_ranks(4, check)
