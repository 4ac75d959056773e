"""Run by test_torchrec.py under torchrun: torchrec_program.py PARTS FOLDER, see run_parts(). The parts under `modules` need TorchRec."""

import logging
import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as torchs
from torch.distributed._shard.metadata import ShardMetadata as TorchsMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard as TorchsShard
from torch.distributed.device_mesh import init_device_mesh as torchs_mesh
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper as TorchsWrapper
from torchrun import run_parts

import shardwise as sw
from shardwise import DTensor, EnumerableShard, LocalShardsWrapper, Replicate, Shard
from shardwise.interop import copy_to_torchrec, from_torchrec, to_torchrec
from shardwise.sharded_tensor import from_sharded_tensor

TABLE = torch.arange(10.0 * 8).view(10, 8)
# Per kind of sharding: (rank, offsets, sizes) of the pieces, and the placement that they are.
KINDS = {
    "rows": ([(0, (0, 0), (3, 8)), (1, (3, 0), (3, 8)), (2, (6, 0), (3, 8)), (3, (9, 0), (1, 8))], Shard(0)),
    "uneven rows": ([(0, (0, 0), (1, 8)), (2, (1, 0), (6, 8)), (3, (7, 0), (3, 8))], Shard(0, sizes=[1, 0, 6, 3])),
    "columns": ([(1, (0, 0), (10, 4)), (3, (0, 4), (10, 4))], Shard(1, sizes=[0, 4, 0, 4])),
    "columns twice on a rank": ([(2, (0, 0), (10, 3)), (0, (0, 3), (10, 3)), (2, (0, 6), (10, 2))], EnumerableShard),
    "one rank": ([(2, (0, 0), (10, 8))], Shard(0, sizes=[0, 0, 10, 0])),
    "rows of a host": ([(0, (0, 0), (5, 8)), (1, (5, 0), (5, 8))], Shard(0, sizes=[5, 5, 0, 0])),
    "grid": (
        [(0, (0, 0), (5, 4)), (1, (5, 0), (5, 4)), (2, (0, 4), (5, 4)), (3, (5, 4), (5, 4))],
        EnumerableShard,
    ),
    "an empty piece": ([(0, (0, 0), (10, 8)), (1, (10, 0), (0, 8))], Shard(0, sizes=[10, 0, 0, 0])),
}


def part_of(table, offsets, sizes):
    return table[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].clone()


def sharded_tensor(table, pieces):
    """A ShardedTensor of these pieces, and this rank's pieces themselves."""
    everywhere = [TorchsMetadata(list(offsets), list(sizes), f"rank:{rank}/cpu") for rank, offsets, sizes in pieces]
    own = [
        TorchsShard(part_of(table, offsets, sizes), metadata)
        for metadata, (rank, offsets, sizes) in zip(everywhere, pieces, strict=True)
        if rank == dist.get_rank()
    ]
    metadata = ShardedTensorMetadata(everywhere, table.size(), TensorProperties(dtype=table.dtype))
    return ShardedTensor._init_from_local_shards_and_global_metadata(own, metadata), [shard.tensor for shard in own]


def torchs_dtensor(table, pieces):
    """As TorchRec makes them: the placements of a rank without pieces are not those of the others."""
    own = [(part_of(table, offsets, sizes), offsets) for rank, offsets, sizes in pieces if rank == dist.get_rank()]
    tensor = torchs.DTensor.from_local(
        TorchsWrapper([piece for piece, _ in own], [offsets for _, offsets in own]),
        torchs_mesh("cpu", (dist.get_world_size(),)),
        [torchs.Shard(0) if own else torchs.Replicate()],
        run_check=False,
        shape=table.shape,
        stride=table.stride(),
    )
    return tensor, [piece for piece, _ in own]


def addresses(pieces):
    return sorted(piece.data_ptr() for piece in pieces if piece.numel() > 0)


def pieces_of(value):
    if isinstance(value, ShardedTensor):
        return [shard.tensor for shard in value.local_shards()]
    local = value._local_tensor
    return local.local_shards() if hasattr(local, "local_shards") else [local]


def expect_error(words, call):
    """On every rank, with all of the words."""
    try:
        call()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"nothing was raised; expected {words}")


def hand_made(folder):
    """Every kind of sharding as a ShardedTensor and as a DTensor over local shards: there and back, in the same memory."""
    for make in (sharded_tensor, torchs_dtensor):
        made = {name: make(TABLE, pieces) for name, (pieces, _) in KINDS.items()}
        theirs = {name: tensor for name, (tensor, _) in made.items()} | {"dense": torch.ones(3), "version": 7}
        ours = from_torchrec(theirs)
        assert list(ours) == list(theirs) and ours["version"] == 7
        assert (
            ours["dense"].placements == (Replicate(),)
            and ours["dense"].to_local().data_ptr() == theirs["dense"].data_ptr()
        )
        for name, (_, placement) in KINDS.items():
            tensor, own = ours[name], made[name][1]
            assert isinstance(tensor, DTensor) and torch.equal(tensor.full_tensor(), TABLE), name
            found = tensor.placements[0]
            assert found == placement if isinstance(placement, Shard) else isinstance(found, placement), (name, found)
            assert addresses(sw._C.to_pieces(tensor)) == addresses(own), name
            assert isinstance(tensor.to_local(), LocalShardsWrapper)
        back = to_torchrec(ours, like=theirs)
        assert (
            list(back) == list(theirs)
            and back["version"] == 7
            and back["dense"].data_ptr() == theirs["dense"].data_ptr()
        )
        for name in KINDS:
            assert type(back[name]) is type(theirs[name])
            assert addresses(pieces_of(back[name])) == addresses(made[name][1]), name
        if make is sharded_tensor:
            assert back["columns"].metadata() == theirs["columns"].metadata()
        ours["columns"].mul_(2)  # the same memory: the module sees it
        assert all(
            torch.equal(piece, 2 * part_of(TABLE, (0, 0 if dist.get_rank() == 1 else 4), (10, 4)))
            for piece in made["columns"][1]
        )


def without_messages(folder):
    """A ShardedTensor alone needs none, on a mesh of some ranks too."""
    for name, (pieces, _) in KINDS.items():
        sharded, own = sharded_tensor(TABLE, pieces)
        with sw.CommDebugMode() as counted:
            ours = from_sharded_tensor(sharded)
        assert counted.get_total_counts() == 0, name
        assert torch.equal(ours.full_tensor(), TABLE) and addresses(sw._C.to_pieces(ours)) == addresses(own), name
    sharded, own = sharded_tensor(TABLE, KINDS["columns"][0])
    ours = from_sharded_tensor(sharded, sw.DeviceMesh("cpu", [3, 1]))
    assert ours.shape == TABLE.shape and ours.placements == (EnumerableShard(list(ours.placements[0].shards)),)
    if dist.get_rank() in (1, 3):
        assert torch.equal(ours.full_tensor(), TABLE)
    expect_error(
        ["rank 1 holds pieces", "outside the mesh"], lambda: from_sharded_tensor(sharded, sw.DeviceMesh("cpu", [0, 3]))
    )


def other_layouts(folder):
    """Tables laid out in any way go into a module of any other way, as new values and in place."""
    mesh = sw.init_device_mesh("cpu", (4,))
    placements = [Replicate(), Shard(0), Shard(1), Shard(0, sizes=[0, 9, 0, 1])]
    for make in (sharded_tensor, torchs_dtensor):
        for placement in placements:
            made = {name: make(torch.zeros_like(TABLE), pieces) for name, (pieces, _) in KINDS.items()}
            theirs = {name: tensor for name, (tensor, _) in made.items()}
            ours = {name: sw.distribute_tensor(TABLE, mesh, [placement]) for name in KINDS}
            moved = to_torchrec(ours, like=theirs)
            copy_to_torchrec(ours, theirs)
            for name, (pieces, _) in KINDS.items():
                expected = [part_of(TABLE, o, n) for rank, o, n in pieces if rank == dist.get_rank()]
                for found in (pieces_of(moved[name]), made[name][1]):
                    assert len(found) == len(expected)
                    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), name
    plain = to_torchrec({"grid": TABLE}, like={"grid": theirs["grid"]})
    assert torch.equal(from_torchrec(plain)["grid"].full_tensor(), TABLE)


def nested(folder):
    """The state of a fused optimizer: nested, and absent on ranks without a piece. On a mesh of some ranks, too."""
    rank = dist.get_rank()
    sharded, own = sharded_tensor(TABLE[:, 0].clone(), [(2, (0,), (10,))])
    theirs = {"state": {"w": {"momentum": sharded}} if rank == 2 else {}, "param_groups": [{"lr": 0.1}]}
    ours = from_torchrec(theirs)
    assert ours["param_groups"] == [{"lr": 0.1}]
    tensor = ours["state"]["w"]["momentum"]
    assert torch.equal(tensor.full_tensor(), TABLE[:, 0]) and addresses(sw._C.to_pieces(tensor)) == addresses(own)
    back = to_torchrec(ours, like=theirs)
    assert ("w" in back["state"]) == (rank == 2) and back["param_groups"] == [{"lr": 0.1}]
    pair = sw.DeviceMesh("cpu", [1, 3])
    if rank in (1, 3):
        some = from_torchrec({"w": torchs_dtensor(TABLE, KINDS["columns"][0])[0]}, pair)["w"]
        assert torch.equal(some.full_tensor(), TABLE)
    else:
        expect_error([f"rank {rank} is outside the mesh"], lambda: from_torchrec({}, pair))
    grid = sw.init_device_mesh("cpu", (2, 2))
    expect_error(["has 2 dims"], lambda: from_torchrec({}, grid))


def bad_input(folder):
    """Everything that does not fit is named, on all ranks; nothing has been written."""
    rank = dist.get_rank()
    good, pieces = sharded_tensor(TABLE, KINDS["rows"][0])
    mesh = sw.init_device_mesh("cpu", (4,))
    ours = {"good": sw.zeros(10, 8, device_mesh=mesh, placements=[Shard(0)]), "extra": torch.ones(2)}
    ours["shape"] = sw.zeros(8, 10, device_mesh=mesh, placements=[Shard(0)])
    ours["dtype"] = sw.zeros(10, 8, device_mesh=mesh, placements=[Shard(0)], dtype=torch.float64)
    like = {"good": good, "missing": good, "shape": good, "dtype": good}
    words = ["4 of the tensors", "missing: missing: it has shape [10, 8]", "extra: extra: there is no such tensor"]
    words += ["shape: torch.float32 [8, 10] is given where", "dtype: torch.float64 [10, 8] is given where"]
    expect_error(words, lambda: to_torchrec(ours, like))
    expect_error(words, lambda: copy_to_torchrec(ours, like))
    assert all(torch.equal(piece, TABLE[3 * rank : 3 * rank + 3]) for piece in pieces)
    if rank == 1:
        del ours["good"]
    expect_error(["good: missing", "(rank 1)"], lambda: to_torchrec({"good": ours.get("good", 0)}, {"good": good}))

    hole = torchs_dtensor(TABLE, [(0, (0, 0), (5, 8)), (1, (6, 0), (4, 8))])[0]
    double = torchs_dtensor(TABLE, [(0, (0, 0), (6, 8)), (1, (5, 0), (5, 8))])[0]
    other = torchs_dtensor(TABLE if rank < 2 else TABLE[:9], KINDS["rows of a host"][0])[0]
    words = ["hole: [from_local] the pieces leave a hole: [5:6, 0:8]", "double: [from_local] the pieces", "overlap"]
    expect_error(words, lambda: from_torchrec({"hole": hole, "fine": good, "double": double}))
    expect_error(["shapes: rank 0 has", "[10, 8], rank 2 one of", "[9, 8]"], lambda: from_torchrec({"shapes": other}))
    some = {"plain": torch.ones(2)} if rank != 3 else {}
    expect_error(["plain: rank 3 lacks it"], lambda: from_torchrec(some))
    kinds = {"dtypes": torch.ones(2, dtype=torch.float64 if rank == 2 else torch.float32)}
    expect_error(["dtypes: rank 0 has torch.float32 on cpu, rank 2 torch.float64"], lambda: from_torchrec(kinds))


def modules(folder):
    """TorchRec's own modules, sharded by plans of each kind, with both kinds of values."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for output_dtensor in (False, True):
        for name, plan in PLANS.items():
            check_module(name, plan, output_dtensor, folder)


PLANS = {
    "row_wise": lambda plans: plans.row_wise(),
    "column_wise": lambda plans: plans.column_wise(ranks=[1, 3]),
    "column_wise on one rank twice": lambda plans: plans.column_wise(ranks=[2, 0, 2, 1]),
    "table_wise": lambda plans: plans.table_wise(rank=2),
    "table_row_wise": lambda plans: plans.table_row_wise(host_index=1),
    "grid_shard": lambda plans: plans.grid_shard(host_indexes=[0, 1]),
    "data_parallel": lambda plans: plans.data_parallel(),
}


def check_module(name, plan, output_dtensor, folder):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import sharding_plan
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.types import ShardingEnv

    os.environ["LOCAL_WORLD_SIZE"] = "2"  # two hosts, as TorchRec counts them
    n_ranks, rank, n_rows = dist.get_world_size(), dist.get_rank(), 11
    config = EmbeddingBagConfig(name="t", embedding_dim=256, num_embeddings=n_rows, feature_names=["ids"])
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.5}
    )
    module = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    chosen = sharding_plan.construct_module_sharding_plan(
        module, {"t": plan(sharding_plan)}, sharder, local_size=2, world_size=n_ranks, device_type="cpu"
    )
    if name != "data_parallel":
        chosen["t"].compute_kernel = "fused"  # not all generators of plans ask for one
    env = ShardingEnv(n_ranks, rank, dist.group.WORLD, output_dtensor=output_dtensor)
    sharded = sharder.shard(module, chosen, env, torch.device("cpu"))
    key = "embedding_bags.t.weight"
    theirs = sharded.state_dict()
    ours = from_torchrec(theirs)
    assert list(ours) == [key] and ours[key].shape == (n_rows, 256), name
    if name != "data_parallel":
        assert addresses(sw._C.to_pieces(ours[key])) == addresses(pieces_of(theirs[key])), name

    # What is written to ours is what TorchRec looks up and trains; what it trains is in ours.
    table = torch.arange(n_rows * 256.0).view(n_rows, 256) / 256
    mesh = sw.init_device_mesh("cpu", (n_ranks,))
    copy_to_torchrec({key: sw.distribute_tensor(table, mesh, [Shard(1)])}, theirs)
    assert torch.equal(ours[key].full_tensor(), table), name
    bags = KeyedJaggedTensor(["ids"], torch.tensor([rank, 10, 4]), lengths=torch.tensor([1, 2]))
    found = sharded(bags).wait().values()
    assert torch.equal(found.detach(), torch.stack([table[rank], table[10] + table[4]])), name
    found.sum().backward()
    trained = ours[key].full_tensor()
    if name != "data_parallel":
        assert (trained[:5] != table[:5]).any(dim=1).all() and torch.equal(trained[5:10], table[5:10]), name
        slots = from_torchrec(sharded.fused_optimizer.state_dict())["state"][key]
        (sums,) = (slot for path, slot in slots.items() if path.endswith("momentum1"))
        assert isinstance(sums, DTensor) and (sums.full_tensor().view(-1, n_rows) > 0)[:, [0, 1, 2, 3, 4, 10]].all(), (
            name
        )

    # Through a checkpoint of ours into a module as TorchRec loads it.
    place = os.path.join(folder, f"{name} {output_dtensor}")
    dcp.save({key: ours[key]}, checkpoint_id=place)
    loaded = {key: sw.zeros(n_rows, 256, device_mesh=mesh, placements=[Shard(0, sizes=[0, 11, 0, 0])])}
    dcp.load(loaded, checkpoint_id=place)
    with torch.no_grad():
        ours[key].zero_()
    sharded.load_state_dict(to_torchrec(loaded, like=theirs))
    assert torch.equal(from_torchrec(sharded.state_dict())[key].full_tensor(), trained), name


def keyed_jagged(folder):
    """A KeyedJaggedTensor as the input of a DistributedEmbedding, with weights and without."""
    from torchrec import KeyedJaggedTensor

    layer = sw.DistributedEmbedding([sw.TableConfig("a", 9, 4), sw.TableConfig("b", 5, 4, combiner="mean")])
    whole = [torch.from_numpy(array) for array in layer.get_weights(all_ranks=True)]
    values, lengths = torch.tensor([0, 8, 3, 4, 4, 1]), torch.tensor([2, 1, 0, 3])
    weights = torch.tensor([0.5, 2.0, 1.0, -1.0, 3.0, 1.0])
    for own in (None, weights):
        vectors = layer(KeyedJaggedTensor(["a", "b"], values, weights=own, lengths=lengths))
        factors = torch.ones(6) if own is None else own
        one = torch.stack([(whole[0][values[:2]] * factors[:2, None]).sum(0), whole[0][3] * factors[2]])
        two = torch.stack([torch.zeros(4), (whole[1][values[3:]] * factors[3:, None]).mean(0)])
        torch.testing.assert_close(vectors, {"a": one, "b": two})


if __name__ == "__main__":
    run_parts(globals())
