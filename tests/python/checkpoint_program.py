"""Run by test_checkpoint.py under torchrun: checkpoint_program.py PARTS FOLDER, see run_parts()."""

import copy
import os
import signal
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as torchs
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh as torchs_mesh
from torchrun import run_parts

import shardwise as sw
from shardwise import RaggedShard, Replicate, Shard
from shardwise.checkpoint import FileSystemReader, FileSystemWriter

FULL = StateDictOptions(full_state_dict=True)
ON_FIRST_RANK = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_FIRST_RANK = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Model(nn.Module):
    """A head that is tied to the table, a norm with buffers, a parameter without dims and one without elements."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.rand(()))
        self.nothing = nn.Parameter(torch.empty(0, 6), requires_grad=False)
        self.double()

    def forward(self, ids):
        return self.head(self.norm(torch.tanh(self.hidden(self.table(ids))))) * self.scale


IDS = torch.tensor([10, 3, 3, 0, 7, 1, 9])


def uneven_rows(n_ranks):
    return Shard(0, sizes={1: [11], 2: [0, 11], 4: [1, 0, 4, 6]}[n_ranks])


def sharded(seed, placements):
    """The model with placements by the names of its parameters; the others are replicas."""
    model = Model(seed)
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))

    def partition(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            if f"{name}.{key}" in placements:
                placed = sw.distribute_tensor(parameter.detach(), mesh, [placements[f"{name}.{key}"]])
                module.register_parameter(key, nn.Parameter(placed))

    return sw.distribute_module(model, mesh, partition), mesh


def by_rows():
    n_ranks = dist.get_world_size()
    ranges = RaggedShard((0, 1), {1: (1,), 2: (3, 1), 4: (2, 3, 0, 5)}[n_ranks])
    return {"table.weight": uneven_rows(n_ranks), "hidden.weight": ranges, "hidden.bias": Shard(0)}


def by_columns():
    return {"table.weight": Shard(1), "hidden.weight": Shard(1, sizes=[6, *[0] * (dist.get_world_size() - 1)])}


def trained(model, n_steps, ids=IDS):
    """Steps of Adam. Gives the optimizer."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step(model, optimizer, n_steps, ids)
    return optimizer


def step(model, optimizer, n_steps, ids=IDS):
    for _ in range(n_steps):
        optimizer.zero_grad()
        (model(ids) - 1).square().sum().backward()
        optimizer.step()


def replicas(ids, mesh):
    return sw.distribute_tensor(ids, mesh, [Replicate()])


def values(state_dict):
    """Nested, with everything of ours gathered."""
    if isinstance(state_dict, dict):
        return {key: values(value) for key, value in state_dict.items()}
    if isinstance(state_dict, (sw.DTensor, torchs.DTensor)):
        return state_dict.detach().full_tensor()
    return state_dict.detach() if isinstance(state_dict, torch.Tensor) else state_dict


def expect(actual, expected):
    torch.testing.assert_close(values(actual), values(expected), rtol=1e-6, atol=1e-9)


def expect_error(call, *words):
    try:
        call()
    except BaseException as error:  # torch's CheckpointException is no Exception
        text = f"{type(error).__name__}: {error}"
        assert all(word in text for word in words), text
        return
    raise AssertionError(f"nothing was raised; expected {words}")


def plain(state_dict):
    if isinstance(state_dict, dict):
        return all(plain(value) for value in state_dict.values())
    return not isinstance(state_dict, sw.DTensor)


def state_dicts(folder):
    """Full ones are the dense model's on every rank or the first, and go back into models of any layout."""
    rank = dist.get_rank()
    dense = Model(0)
    dense_optimizer = trained(dense, 2)
    expected = get_state_dict(dense, dense_optimizer)
    model, mesh = sharded(0, by_rows())
    optimizer = trained(model, 2, replicas(IDS, mesh))
    full = get_state_dict(model, optimizer, options=FULL)
    assert plain(full[0]) and plain(full[1]["state"])
    assert rank == 1 or full[0]["head.weight"] is full[0]["table.weight"]  # rank 1 has no rows, of which it could tell
    expect(full[0], expected[0])
    expect(full[1]["state"], expected[1]["state"])
    sharded_states = get_state_dict(model, optimizer)
    assert sharded_states[0]["table.weight"].placements == (uneven_rows(4),)
    expect(sharded_states[1]["state"], expected[1]["state"])
    first = get_state_dict(model, optimizer, options=ON_FIRST_RANK)
    if rank == 0:
        expect(first[0], expected[0])
    else:
        assert not first[0]

    step(dense, dense_optimizer, 1)
    for options, given in [
        (FULL, full),
        (FROM_FIRST_RANK, full if rank == 0 else ({}, {})),
        (StateDictOptions(), sharded_states),
    ]:
        other, mesh = sharded(1, by_rows() if options.full_state_dict is False else by_columns())
        other_optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
        placements = other.table.weight.placements
        model_state, optimizer_state = copy.deepcopy(given)  # an optimizer keeps the tensors that it loads
        set_model_state_dict(other, model_state, options=options)
        set_optimizer_state_dict(other, other_optimizer, optimizer_state, options=options)
        assert other.table.weight.placements == placements and other.head.weight is other.table.weight
        moments = other_optimizer.state[other.table.weight]["exp_avg"]
        assert isinstance(moments, sw.DTensor) and moments.placements == placements
        step(other, other_optimizer, 1, replicas(IDS, mesh))
        expect(get_model_state_dict(other, options=FULL), dense.state_dict())

    alone = sw.distribute_tensor(torch.ones(4), sw.DeviceMesh("cpu", [1, 2]), [Shard(0)])
    holder = nn.Module()
    holder.alone = nn.Parameter(alone)
    if rank in (1, 2):
        assert get_model_state_dict(holder, options=FULL)["alone"].tolist() == [1] * 4
    else:
        expect_error(lambda: get_model_state_dict(holder, options=FULL), "[state_dict] alone lives on", "Redistribute")


def saved_state(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save(folder):
    """Four ranks save what two, or torch.distributed.tensor, load."""
    model, mesh = sharded(0, by_rows())
    optimizer = trained(model, 2, replicas(IDS, mesh))
    dcp.save(saved_state(model, optimizer), checkpoint_id=f"{folder}/ours")
    torchs_model, torchs_optimizer = of_torch(0, 2)
    dcp.save(saved_state(torchs_model, torchs_optimizer), checkpoint_id=f"{folder}/torchs")


def of_torch(seed, n_steps):
    model = Model(seed)
    mesh = torchs_mesh("cpu", (dist.get_world_size(),))
    placements = {"table": [torchs.Shard(0)], "hidden": [torchs.Shard(1)]}

    def partition(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            placed = placements.get(name, [torchs.Replicate()]) if parameter.dim() == 2 else [torchs.Replicate()]
            tensor = torchs.distribute_tensor(parameter.detach(), mesh, placed)
            module.register_parameter(key, nn.Parameter(tensor, requires_grad=parameter.requires_grad))

    torchs.distribute_module(model, mesh, partition)
    model.head.weight = model.table.weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dense = Model(seed)
    dense_optimizer = trained(dense, n_steps) if n_steps else torch.optim.Adam(dense.parameters(), lr=0.01)
    if n_steps:  # torch.distributed.tensor cannot run this model's norm and lookup on every layout
        model_state, optimizer_state = get_state_dict(dense, dense_optimizer)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=FULL)
    return model, optimizer


def load(folder):
    """Any number of ranks, other layouts, both ways with torch.distributed.tensor."""
    dense = Model(0)
    expected = get_state_dict(dense, trained(dense, 2))
    for source in ("ours", "torchs"):
        for make in (
            lambda: sharded(1, by_columns())[0],
            lambda: sharded(1, by_rows())[0],
            lambda: of_torch(1, 0)[0],
            lambda: Model(1),
        ):
            model = make()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            state = saved_state(model, optimizer)
            dcp.load(state, checkpoint_id=f"{folder}/{source}")
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            actual = get_state_dict(model, optimizer)
            expect(actual[0], expected[0])
            expect(actual[1]["state"], expected[1]["state"])


def async_save(folder):
    """By every stager; what is trained on meanwhile does not get into the checkpoint."""
    model, mesh = sharded(0, by_rows())
    optimizer = trained(model, 1, replicas(IDS, mesh))
    group = dist.new_group(backend="gloo")  # of the thread that saves: training goes on over the world's
    expect_error(
        lambda: dcp.async_save(saved_state(model, optimizer), checkpoint_id=f"{folder}/shared_group"),
        "[async_save] a thread would save DTensors of a CPU mesh", "process_group=dist.new_group",
    )  # fmt: skip
    stagers = {
        "default": {},
        "threads": {"async_stager": DefaultStager(StagingOptions(False, False, True, False))},
        "shared": {
            "async_stager": DefaultStager(StagingOptions(False, True, False, False)),
            "async_checkpointer_type": AsyncCheckpointerType.PROCESS,
        },
        "writer": {"storage_writer": FileSystemWriter(f"{folder}/writer")},
    }
    for name, options in stagers.items():
        state = saved_state(model, optimizer)
        expected = copy.deepcopy(values(state))
        of_process = "async_checkpointer_type" in options
        started = dcp.async_save(
            state, checkpoint_id=f"{folder}/{name}", process_group=None if of_process else group, **options
        )
        future = started
        if not hasattr(started, "result"):
            started.staging_completion.result()
            future = started.upload_completion
        step(model, optimizer, 1, replicas(IDS, mesh))
        future.result()
        other, _ = sharded(1, by_columns())
        loaded = saved_state(other, torch.optim.Adam(other.parameters(), lr=0.01))
        dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
        expect(loaded["model"], expected["model"])
        expect(loaded["optimizer"]["state"], expected["optimizer"]["state"])


def hugging_face(folder):
    """Files of safetensors: sliced ones, put together, from full values; read into shards."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    rank = dist.get_rank()
    model, _ = sharded(0, by_rows())
    state = get_model_state_dict(model)
    del state["head.weight"]  # safetensors refuses memory that two names share
    del state["norm.num_batches_tracked"], state["scale"]  # torch's consolidation loses integers, and what has no dims
    expected = values(state)
    expect_error(  # ranges are several boxes on some rank
        lambda: dcp.save(state, storage_writer=HuggingFaceStorageWriter(f"{folder}/ranges", save_distributed=True)),
        "[checkpoint] a safetensors file holds one piece", "hidden.weight", "Redistribute to Shard",
    )  # fmt: skip
    state["hidden.weight"] = state["hidden.weight"].redistribute(placements=[Shard(0)])
    for name, consolidated in [("slices", False), ("whole", True)]:
        writer = HuggingFaceStorageWriter(f"{folder}/{name}", save_distributed=True, enable_consolidation=consolidated)
        dcp.save(state, storage_writer=writer)
        dist.barrier()
        other, _ = sharded(1, by_columns())
        loaded = {key: tensor for key, tensor in get_model_state_dict(other).items() if key in state}
        dcp.load(loaded, storage_reader=HuggingFaceStorageReader(f"{folder}/{name}"))
        expect(loaded, expected)
    files = [path for path in os.listdir(f"{folder}/whole") if path.endswith(".safetensors")]
    whole = {key: value for path in files for key, value in load_file(f"{folder}/whole/{path}").items()}
    expect(whole, expected)

    expect_error(
        lambda: save_file({"weight": model.table.weight.detach()}, f"{folder}/{rank}.safetensors"),
        "[data_ptr] rank", "get_model_state_dict with full_state_dict=True",
    )  # fmt: skip
    full = get_model_state_dict(model, options=FULL)
    del full["head.weight"], full["nothing"]
    save_file({**full, "replicated": model.norm.weight.detach().clone()}, f"{folder}/{rank}.safetensors")
    with safe_open(f"{folder}/{rank}.safetensors", "pt") as file:
        expect(file.get_tensor("table.weight"), expected["table.weight"])
        expect(file.get_tensor("replicated"), expected["norm.weight"])


def save_pretrained(folder):
    """Rank 0 writes what a dense model would; all ranks take part, in a Trainer too."""
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.trainer import Trainer

    mesh = sw.init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    dense = {name: tensor.clone() for name, tensor in gpt.state_dict().items()}

    def partition(name, module, mesh):
        if name.endswith(("wte", "c_attn")):
            rows = Shard(0, sizes=[2, 0, 9, 6]) if name.endswith("wte") else Shard(1)
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [rows]))

    sw.distribute_module(gpt, mesh, partition)
    assert gpt.lm_head.weight is gpt.transformer.wte.weight
    gpt.save_pretrained(f"{folder}/gpt")
    trainer = object.__new__(Trainer)  # a whole one needs accelerate
    trainer.model, trainer.processing_class, trainer.data_collator = gpt, None, None
    trainer.args = SimpleNamespace(should_save=dist.get_rank() == 0, output_dir=f"{folder}/trained")
    trainer.is_distributed_loading_by_transformers = gpt.is_distributed_loading_by_transformers
    trainer._save()
    dist.barrier()
    for saved in ("gpt", "trained"):
        expect(GPT2LMHeadModel.from_pretrained(f"{folder}/{saved}").state_dict(), dense)
        assert "lm_head.weight" not in load_file(f"{folder}/{saved}/model.safetensors")


def table_of(value, mesh):
    return {
        "table": sw.full((64, 8), value, device_mesh=mesh, placements=[Shard(0, sizes=[10, 0, 50, 4])]),
        "note": str(value),
    }


def expect_one_save(folder):
    names = os.listdir(folder)
    assert ".metadata" in names and len({name.split("_")[2] for name in names if name != ".metadata"}) == 1, names


def replaced(folder):
    """A folder's checkpoint is replaced by another, of other ranks and names; nothing of the old one stays."""
    mesh = sw.init_device_mesh("cpu", (4,))
    writer = FileSystemWriter(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = []
        for value in (1.0, 2.0, 3.0):
            dcp.save(table_of(value, mesh), storage_writer=writer)
            dist.barrier()
            names.append({name for name in os.listdir(folder) if name != ".metadata"})
            dist.barrier()
        assert not names[0] & names[1] and not names[1] & names[2]
    loaded = table_of(0.0, mesh)
    dcp.load(loaded, checkpoint_id=folder)
    assert loaded["note"] == "3.0" and bool((loaded["table"] == 3).all().item())
    expect_one_save(folder)
    expect_error(
        lambda: dcp.save(table_of(4.0, mesh), storage_writer=FileSystemWriter(folder, overwrite=False)),
        "overwrite is False",
    )
    expect_error(
        lambda: dcp.save(table_of(4.0, mesh), storage_writer=writer, use_collectives=False), "use_collectives=False"
    )


def read_bytes(folder):
    """A rank reads its own elements and no others, in any layout, and replicas are written once."""
    four, square = sw.init_device_mesh("cpu", (4,)), sw.init_device_mesh("cpu", (2, 2))
    two = sw.DeviceMesh("cpu", [0, 1])  # the other ranks have nothing
    values = torch.arange(64 * 2048.0).view(64, 2048)

    def placed(dense, mesh, placements):
        return sw.distribute_tensor(dense, mesh, placements, src_data_rank=None)

    saved = {"rows": placed(values, four, [Shard(0)]), "replica": placed(values, square, [Replicate(), Shard(0)])}
    dcp.save(saved, storage_writer=FileSystemWriter(folder))
    dist.barrier()
    n_bytes = sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder) if name.endswith(".distcp"))
    assert 0 < n_bytes - 2 * values.nbytes < 6 * 1024
    for mesh, placements in [
        (four, [Shard(0)]),
        (four, [Shard(1)]),
        (four, [Shard(0, sizes=[1, 0, 60, 3])]),
        (four, [RaggedShard((0, 1), (2, 3, 0, 5))]),
        (square, [Shard(0), Shard(1)]),
        (square, [Replicate(), Shard(1)]),
        (two, [Shard(1)]),
        (two, [Replicate()]),
    ]:
        loaded = {name: placed(torch.zeros(64, 2048), mesh, placements) for name in saved}
        reader = FileSystemReader(folder)
        dcp.load(loaded, storage_reader=reader)
        expected = sw._C.detached_pieces(placed(values, mesh, placements), "test")
        for tensor in loaded.values():
            pieces = sw._C.detached_pieces(tensor, "test")
            assert all(torch.equal(piece, other) for piece, other in zip(pieces, expected, strict=True))
        assert reader.n_bytes_read == 2 * sum(piece.nbytes for piece in expected), (mesh, placements)


def killed(folder):
    """One rank is killed while it writes."""
    mesh = sw.init_device_mesh("cpu", (4,))
    dcp.save(table_of(1.0, mesh), storage_writer=FileSystemWriter(folder))

    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if dist.get_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(item)

    dcp.save(table_of(2.0, mesh), storage_writer=FileSystemWriter(folder), planner=Planner())


def after_the_kill(folder):
    mesh = sw.init_device_mesh("cpu", (4,))
    loaded = table_of(0.0, mesh)
    dcp.load(loaded, checkpoint_id=folder)
    assert loaded["note"] == "1.0" and bool((loaded["table"] == 1).all().item())
    dcp.save(table_of(3.0, mesh), storage_writer=FileSystemWriter(folder))
    dist.barrier()
    expect_one_save(folder)


def other_model(folder):
    """All names that are wrong, on every rank, and nothing is loaded."""
    mesh = sw.init_device_mesh("cpu", (4,))
    place = [Shard(0, sizes=[1, 0, 1, 1])]
    dcp.save(
        {"model": {name: sw.ones(3, 2, device_mesh=mesh, placements=place) for name in "abc"}}, checkpoint_id=folder
    )
    state = {"model": {name: sw.zeros(3, 2, device_mesh=mesh, placements=place) for name in "axy"}}
    expect_error(
        lambda: dcp.load(state, checkpoint_id=folder), "lacks model.x, model.y.", "has besides: model.b, model.c."
    )
    assert not values(state["model"]["a"]).any()
    sizes = {
        "model": {"a": state["model"]["a"], "b": sw.zeros(2, 2, device_mesh=mesh), "c": sw.zeros(4, device_mesh=mesh)}
    }
    expect_error(
        lambda: dcp.load(sizes, checkpoint_id=folder),
        "model.b is [3, 2] there and [2, 2] here; model.c is [3, 2] there and [4] here",
    )
    assert not values(state["model"]["a"]).any()
    dcp.load({"model": {"a": state["model"]["a"]}}, checkpoint_id=folder)  # a part of it
    assert values(state["model"]["a"]).all()


if __name__ == "__main__":
    run_parts(globals())
