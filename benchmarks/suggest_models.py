"""Models for suggest(): its benchmark and its tests plan them."""

import torch
from torch import nn
from torch.nn import functional as F


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (each(h).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, width, n_heads, n_blocks, n_words=128):
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_blocks))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, n_words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tables(nn.Module):
    """Looks up a list of ids, each in its table."""

    def __init__(self, n_rows, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in n_rows)

    def forward(self, ids):
        return [table(each) for table, each in zip(self.tables, ids, strict=True)]


def mlp_blocks(n_blocks):
    with torch.device("meta"):
        model = nn.Sequential(*(MLP(4096) for _ in range(n_blocks))).bfloat16()
    return model, lambda *sizes: torch.rand(*sizes, 4096, dtype=torch.bfloat16)


def llama_blocks(n_blocks):
    with torch.device("meta"):
        model = Llama(4096, 32, n_blocks, 32000).bfloat16()
    return model, lambda *sizes: torch.zeros(*sizes, dtype=torch.long)


MODELS = {"mlp": mlp_blocks, "llama": llama_blocks}  # by name: make a model of so many blocks, and what makes a batch
