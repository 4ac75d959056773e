"""Two-tower retrieval: a query's vector is close to the vector of its passage, and far from the vectors of all other passages.

The text is the reference that Python's own help() quotes, in passages of 60 words. A query is 12 words of a passage; the other 48 words and
the topic are the passage to find (the inverse cloze task of Lee, Chang and Toutanova, 2019). Both towers look up words in one table. A
query's negatives are all other passages of the batch, on all ranks: vectors are gathered, and their gradients go back to the ranks that
computed them. The losses do not depend on the number of ranks: one rank gives the same losses.

    $ torchrun --nproc-per-node 4 examples/two_tower.py
    Text of Python 3.11.7: 915 passages of 1,852 words, 79 topics

    Epoch   loss  recall at 10
        0                 0.139
        5 2.6396         0.270
       10 1.8386         0.357
       15 1.6133         0.374
       20 1.4118         0.435
"""

import argparse
import platform
import re
from collections import Counter
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shardwise as sw

WIDTH = 32
PASSAGE, QUERY = 60, 12  # words
FEWEST = 3  # rarer words are left out
BATCH, TEMPERATURE = 128, 0.1
HELD_OUT = 8  # one passage of so many is never trained on


def read_passages() -> tuple[int, Tensor, Tensor]:
    """The number of words known, passages [passage, word] as numbers of words, and their topics [passage]."""
    texts = [re.findall(r"\b[a-z_]{2,}\b", text.lower()) for text in topics.values()]
    counts = sorted(Counter(word for text in texts for word in text).items(), key=lambda item: (-item[1], item[0]))
    number = {word: i for i, word in enumerate(word for word, n in counts if n >= FEWEST)}
    passages, of_topics = [], []
    for topic, text in enumerate(texts):
        known = torch.tensor([number[word] for word in text if word in number], dtype=torch.long)
        whole = known[: len(known) // PASSAGE * PASSAGE].view(-1, PASSAGE)
        passages.append(whole)
        of_topics.append(torch.full((len(whole),), topic))
    return len(number), torch.cat(passages), torch.cat(of_topics)


def draw_queries(passages: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """12 consecutive words at a random position in each passage, and the other 48 words."""
    first = torch.randint(PASSAGE - QUERY + 1, (len(passages), 1), generator=random)
    places = (torch.arange(PASSAGE) + first) % PASSAGE
    turned = passages.gather(1, places)
    return turned[:, :QUERY], turned[:, QUERY:]


class TwoTowers(nn.Module):
    def __init__(self, n_words: int, n_topics: int) -> None:
        super().__init__()
        tables = [
            sw.TableConfig("words", n_words, WIDTH, combiner="mean", ids_per_sample=PASSAGE, skew=1.0),
            sw.TableConfig("topics", n_topics, WIDTH),
        ]
        self.embedding = sw.DistributedEmbedding(
            tables,
            input_table_map=["words", "words", "topics"],
            input_names=["query", "passage", "topic"],
            row_slice_threshold=n_words * WIDTH,  # words by rows over all ranks
            data_parallel_threshold=n_topics * WIDTH,  # topics on every rank
        )
        self.query = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        self.passage = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, query: Tensor, passage: Tensor, topic: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors of this rank's queries and passages, [samples, 32] each."""
        found = self.embedding({"query": query, "passage": passage, "topic": topic})
        asked = found["query"] + self.query(found["query"])
        offered = found["passage"] + self.passage(torch.cat([found["passage"], found["topic"]], 1))
        return F.normalize(asked, dim=1), F.normalize(offered, dim=1)


def parts(n: int, mesh: sw.DeviceMesh) -> tuple[list[int], slice]:
    """The number of samples on each rank, of n samples in total, and the samples of this rank."""
    sizes = [len(part) for part in torch.arange(n).tensor_split(mesh.size())]
    begin = sum(sizes[: mesh.get_local_rank()])
    return sizes, slice(begin, begin + sizes[mesh.get_local_rank()])


def of_all_ranks(own: Tensor, sizes: list[int], mesh: sw.DeviceMesh) -> Tensor:
    """The rows of all ranks. The gradients of a row are summed over the ranks, and go back to the rank that has the row."""
    shape = torch.Size([sum(sizes), own.shape[1]])
    rows = sw.DTensor.from_local(
        own.contiguous(), mesh, [sw.Shard(0, sizes=sizes)], run_check=False, shape=shape, stride=(own.shape[1], 1)
    )
    return rows.redistribute(placements=[sw.Replicate()]).to_local(grad_placements=[sw.Partial()])


@torch.no_grad()
def recall_at_10(model: nn.Module, queries: Tensor, rests: Tensor, topic: Tensor, mesh: sw.DeviceMesh) -> float:
    """The share of queries of held-out passages whose passage is among the first ten of all passages."""
    sizes, own = parts(len(queries), mesh)
    asked, offered = (of_all_ranks(v, sizes, mesh) for v in model(queries[own], rests[own], topic[own]))
    held_out = torch.arange(0, len(queries), HELD_OUT)
    first_ten = (asked[held_out] @ offered.T).topk(10).indices
    return (first_ten == held_out[:, None]).any(1).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Two-tower retrieval with in-batch negatives.")
    parser.add_argument("--epochs", type=int, default=20)
    n_epochs = parser.parse_args().epochs
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    say = print if dist.get_rank() == 0 else lambda *_: None

    n_words, passages, topic = read_passages()
    towers = TwoTowers(n_words, len(topics))
    model = DistributedDataParallel(towers)  # leaves the tables to their layer
    optimizers = [
        sw.optim.FusedAdagrad(towers.embedding.parameters(), lr=0.1, row_wise=True),
        torch.optim.Adam([*towers.query.parameters(), *towers.passage.parameters()], lr=2e-3),
    ]

    say(
        f"Text of Python {platform.python_version()}: {len(passages)} passages of {n_words:,} words, {len(topics)} topics"
    )
    random = torch.Generator().manual_seed(0)  # the same on every rank: all draw the whole batch and take their part
    fixed = draw_queries(passages, random)
    trained_on = torch.tensor([i for i in range(len(passages)) if i % HELD_OUT])
    say(f"\nEpoch   loss  recall at 10\n    0         {recall_at_10(towers, *fixed, topic, mesh):13.3f}")
    for epoch in range(n_epochs):
        losses = []
        for batch in trained_on[torch.randperm(len(trained_on), generator=random)].split(BATCH):
            queries, rests = draw_queries(passages[batch], random)
            sizes, own = parts(len(batch), mesh)
            asked, offered = model(queries[own], rests[own], topic[batch][own])
            scores = asked @ of_all_ranks(offered, sizes, mesh).T / TEMPERATURE
            wanted = torch.arange(own.start, own.stop)
            # Ranks' gradients are averaged; of parts of different sizes the mean is that of all samples.
            loss = F.cross_entropy(scores, wanted, reduction="sum") * len(sizes) / len(batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            losses.append(total.item() / len(sizes))
        if (epoch + 1) % 5 == 0:
            recall = recall_at_10(towers, *fixed, topic, mesh)
            say(f"{epoch + 1:5} {sum(losses) / len(losses):6.4f} {recall:13.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
