"""Word vectors by skip-gram with negative sampling, from tables whose rows are sharded unevenly over four ranks.

The text is the reference that Python's own help() quotes. Words are ordered by frequency in the tables, and each rank gets rows until it
has its share of lookups: a few frequent words, or many rare words. Each rank has the word pairs of its part of a batch. It looks them up in
rows of all ranks, and sends the gradients back to these rows. The losses do not depend on the number of ranks: one rank gives the same
curve.

    $ torchrun --nproc-per-node 4 examples/train_word_vectors.py
    Text of Python 3.11.7: 54,539 words, 1,228 different ones
    Rank           0      1      2      3
    Rows          33    121    292    782
    Lookups      25%    25%    25%    25%

    Epoch   loss
        1 2.7259
        2 2.3477
        3 2.2855
        4 2.2406
        5 2.2187
        6 2.2017

    Neighbours
      true      false, otherwise, isupper, return, boolean
      list      comma, tuple, comprehension, items, two
      string    str, strings, sep, literal, return
      class     instance, defined, created, practices, defines
      import    imported, module, baz, moduletype, feature
      argument  arguments, defaults, accept, positional, keyword
      raised    exception, present, an, indexerror, it
"""

import argparse
import platform
import re
from collections import Counter
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import shardwise as sw

WIDTH = 32
WINDOW = 4  # how far apart the words of a pair stand
N_NEGATIVES = 5  # random words beside each real neighbour
FEWEST = 5  # rarer words are left out
COMMON = 1e-3  # words that are more of the text than this are thinned out
BATCH, LEARNING_RATE = 8192, 0.3
QUERIES = ["true", "list", "string", "class", "import", "argument", "raised"]


def read_text() -> tuple[list[str], Tensor]:
    """The vocabulary, frequent words first, and the text as places in it."""
    words = re.findall(r"\b[a-z]{2,}\b", " ".join(topics.values()).lower())
    counts = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    vocabulary = [word for word, n in counts if n >= FEWEST]
    place = {word: i for i, word in enumerate(vocabulary)}
    return vocabulary, torch.tensor([place[word] for word in words if word in place])


def equal_shares(weight: Tensor, n_parts: int) -> list[int]:
    """How many rows of each part make the sums of the parts' weights about equal."""
    ends = torch.searchsorted(weight.cumsum(0) / weight.sum(), torch.arange(1, n_parts) / n_parts) + 1
    return torch.tensor([0, *ends, len(weight)]).diff().tolist()


def draw_pairs(text: Tensor, keep: Tensor, random: torch.Generator) -> Tensor:
    """Neighbours in the thinned text, each way round and in random order: [pair, 2]."""
    text = text[torch.rand(len(text), generator=random) < keep[text]]
    forth = torch.cat([torch.stack([text[:-step], text[step:]], 1) for step in range(1, WINDOW + 1)])
    pairs = torch.cat([forth, forth.flip(1)])
    return pairs[torch.randperm(len(pairs), generator=random)]


def skip_gram_loss(words: Tensor, context: Tensor, pairs: Tensor, negatives: Tensor) -> Tensor:
    """The loss. It is low if a word's vector is close to the vectors of its neighbours and far from the vectors of random words."""
    word = F.embedding(pairs[:, 0], words).redistribute(placements=pairs.placements)
    others = torch.cat([pairs[:, 1:], negatives], 1)
    other = F.embedding(others, context).redistribute(placements=pairs.placements)
    score = (other @ word.unsqueeze(2)).squeeze(2)
    return -(F.logsigmoid(score[:, 0]) + F.logsigmoid(-score[:, 1:]).sum(1)).mean()


def print_neighbours(table: Tensor, vocabulary: list[str]) -> None:
    """The words whose vectors have the largest cosine with those of QUERIES."""
    unit = F.normalize(table.detach() - table.detach().mean(0), dim=1)
    ids = [vocabulary.index(word) for word in QUERIES if word in vocabulary]
    chosen = F.embedding(sw.distribute_tensor(torch.tensor(ids), table.device_mesh, [sw.Replicate()]), unit)
    cosines = (chosen @ unit.T).full_tensor()
    if dist.get_rank() == 0:
        print("\nNeighbours")
        for own, places in zip(ids, cosines.topk(6).indices.tolist(), strict=True):
            nearest = [vocabulary[i] for i in places if i != own][:5]
            print(f"  {vocabulary[own]:9} {', '.join(nearest)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Word vectors from tables sharded by rows.")
    parser.add_argument("--epochs", type=int, default=6)
    n_epochs = parser.parse_args().epochs
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))

    vocabulary, text = read_text()
    frequency = torch.bincount(text, minlength=len(vocabulary)) / len(text)
    keep = (COMMON / frequency).sqrt().clamp(max=1)
    noise = frequency**0.75
    sizes = equal_shares(noise, mesh.size())
    if dist.get_rank() == 0:
        print(f"Text of Python {platform.python_version()}: {len(text):,} words, {len(vocabulary):,} different ones")
        shares = [part.sum() / noise.sum() for part in noise.split(sizes)]
        print("Rank     " + "".join(f"{rank:7}" for rank in range(mesh.size())))
        print("Rows     " + "".join(f"{n:7}" for n in sizes))
        print("Lookups  " + "".join(f"{share:7.0%}" for share in shares))
        print("\nEpoch   loss")

    torch.manual_seed(0)
    placed = {"device_mesh": mesh, "placements": [sw.Shard(0, sizes=sizes)]}
    words = ((sw.rand(len(vocabulary), WIDTH, **placed) - 0.5) / WIDTH).requires_grad_()
    context = sw.zeros(len(vocabulary), WIDTH, **placed, requires_grad=True)
    optimizer = torch.optim.Adagrad([words, context], lr=LEARNING_RATE)

    random = torch.Generator().manual_seed(0)  # drawn alike on every rank: the whole batch, of which it takes its part
    for epoch in range(n_epochs):
        losses = []
        for pairs in draw_pairs(text, keep, random).split(BATCH):
            negatives = torch.multinomial(noise, len(pairs) * N_NEGATIVES, replacement=True, generator=random)
            batch = (pairs, negatives.view(len(pairs), N_NEGATIVES))
            own = [sw.distribute_tensor(ids, mesh, [sw.Shard(0)], src_data_rank=None) for ids in batch]
            loss = skip_gram_loss(words, context, *own)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if dist.get_rank() == 0:
            print(f"{epoch + 1:5} {sum(losses) / len(losses):6.4f}", flush=True)

    print_neighbours(words, vocabulary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
