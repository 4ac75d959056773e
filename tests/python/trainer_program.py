"""A small Llama trained by transformers' Trainer and by accelerate, on one rank and, sharded, on several. test_trainer.py starts it.

python trainer_program.py dense FOLDER     on one rank: losses and weights go to the folder
torchrun trainer_program.py PARTS FOLDER   on several: losses and weights are those
"""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from torchrun import run_parts
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import shardwise as sw
from shardwise import DTensor, Replicate, Shard

N_STEPS = 4


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=37, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        intermediate_size=40, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def sharded():
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    dims = {
        "embed_tokens": 0,
        "q_proj": 0,
        "k_proj": 0,
        "v_proj": 0,
        "gate_proj": 0,
        "up_proj": 0,
        "o_proj": 1,
        "down_proj": 1,
        "lm_head": 0,
    }

    def shard(name, module, mesh):
        if (dim := dims.get(name.rpartition(".")[2])) is not None:
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [Shard(dim)]))

    return sw.distribute_module(llama(), mesh, shard)


def rows():
    """Of one length with padding, which counts for nothing."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 37, (12, 7), generator=generator)
    ids[::3, 5:] = 0
    labels = ids.masked_fill(ids == 0, -100)
    return [{"input_ids": i, "attention_mask": (i != 0).long(), "labels": k} for i, k in zip(ids, labels, strict=True)]


def trainer(model, folder, **options):
    options = TrainingArguments(**{
        "output_dir": folder, "max_steps": N_STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2, "max_grad_norm": 0.3, "logging_steps": 1, "save_strategy": "no", "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "seed": 5, **options,
    })  # fmt: skip
    return Trainer(model=model, args=options, train_dataset=rows(), eval_dataset=rows()[:5])


def trained(model, folder):
    """Losses and norms of the steps, the loss of an evaluation; saves the weights."""
    ours = trainer(model, folder)
    ours.train()
    steps = [entry for entry in ours.state.log_history if "grad_norm" in entry]
    assert len(steps) == N_STEPS
    logged = [entry[key] for entry in steps for key in ("loss", "grad_norm")]
    evaluated = ours.evaluate()["eval_loss"]
    ours.save_model(folder)
    return torch.tensor([*logged, evaluated])


def looped(model, accelerator):
    """The same by accelerate alone, in the usual loop. Gives the loss of each step, and the norm that was clipped."""
    batches = DataLoader(rows(), batch_size=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    seen = []
    for batch in batches:
        out = model(**batch)
        accelerator.backward(out.loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        predictions, labels = accelerator.gather_for_metrics((out.logits.argmax(-1), batch["labels"]))
        seen += [accelerator.gather(out.loss).mean().item(), norm.item(), (predictions == labels).sum().item()]
    return torch.tensor(seen)


def dense(folder):
    result = {"trainer": trained(llama(), f"{folder}/dense"), "loop": looped(llama(), Accelerator(cpu=True))}
    torch.save(result, f"{folder}/dense.pt")


def by_trainer(folder):
    model = sharded()
    seen = trained(model, f"{folder}/sharded")
    torch.testing.assert_close(seen, torch.load(f"{folder}/dense.pt")["trainer"], rtol=1e-3, atol=1e-4)
    assert model.lm_head.weight.placements == (Shard(0),) and model.model.norm.weight.placements == (Replicate(),)
    dist.barrier()
    ours, theirs = (load_file(f"{folder}/{name}/model.safetensors") for name in ("sharded", "dense"))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, rtol=1e-2, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def by_accelerate(folder):
    model = sharded()
    seen = looped(model, Accelerator(cpu=True))
    torch.testing.assert_close(seen, torch.load(f"{folder}/dense.pt")["loop"], rtol=1e-3, atol=1e-4)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def unequal_batches(folder):
    """A loader that was prepared before the model deals each rank batches of its own."""
    accelerator = Accelerator(cpu=True)
    batches = accelerator.prepare(DataLoader(rows(), batch_size=3))
    model = accelerator.prepare(sharded())
    try:
        model(**next(iter(batches)))
    except (ValueError, TypeError) as error:
        assert "called LlamaForCausalLM with different input_ids" in str(error), error
    else:
        raise AssertionError("no error")


def losses_of(ours):
    return torch.tensor([entry["loss"] for entry in ours.state.log_history if "loss" in entry])


def resumed_by_trainer(folder):
    """A run that stops halfway and goes on in a new Trainer, with a model of other values, is the run that did not stop."""
    whole = trainer(sharded(), f"{folder}/whole")
    whole.train()
    halves = {"save_strategy": "steps", "save_steps": N_STEPS // 2, "save_total_limit": 1}
    stopped = trainer(sharded(), f"{folder}/halves", **halves)
    stopped.add_callback(StopAt(N_STEPS // 2))
    stopped.train()
    dist.barrier()
    checkpoint = f"{folder}/halves/checkpoint-{N_STEPS // 2}"
    saved = torch.load(f"{checkpoint}/optimizer.pt", weights_only=True)
    shapes = [list(parameter.shape) for group in stopped.optimizer.param_groups for parameter in group["params"]]
    assert [list(saved["state"][i]["exp_avg"].shape) for i in range(len(shapes))] == shapes
    other = sharded()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    resumed = trainer(other, f"{folder}/halves", **halves)
    resumed.train(resume_from_checkpoint=checkpoint)
    torch.testing.assert_close(losses_of(resumed), losses_of(whole))
    state = next(iter(resumed.optimizer.state.values()))["exp_avg"]
    assert isinstance(state, DTensor) and state.placements == (Shard(0),)


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **others):
        control.should_training_stop |= state.global_step >= self.step


def steps(model, optimizer, accelerator, batches):
    losses = []
    for batch in batches:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.full_tensor().item())
    return losses


def resumed_by_accelerate(folder):
    """What save_state() writes, load_state() of another run takes over: the next steps are the same."""
    halves, accelerator = [], Accelerator(cpu=True)
    for safe in (True, False):
        for _ in range(2):
            model = sharded()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            prepared = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=3))
            halves.append(prepared)
        first, second = halves[-2:]
        steps(first[0], first[1], accelerator, first[2])
        accelerator._models, accelerator._optimizers = [first[0]], [first[1]]
        accelerator.save_state(f"{folder}/state-{safe}", safe_serialization=safe)
        accelerator.wait_for_everyone()
        accelerator._models, accelerator._optimizers = [second[0]], [second[1]]
        accelerator.load_state(f"{folder}/state-{safe}")
        for parameter, expected in zip(second[0].parameters(), first[0].parameters(), strict=True):
            torch.testing.assert_close(parameter.detach().full_tensor(), expected.detach().full_tensor())
        expected = steps(first[0], first[1], accelerator, first[2])
        assert steps(second[0], second[1], accelerator, second[2]) == expected
        accelerator._models, accelerator._optimizers = [], []


PARTS = {
    "trainer": by_trainer,
    "accelerate": by_accelerate,
    "unequal": unequal_batches,
    "resumed": resumed_by_trainer,
    "states": resumed_by_accelerate,
}

if __name__ == "__main__":
    if sys.argv[1] == "dense":
        dense(sys.argv[2])
    else:
        run_parts(PARTS)
