"""Tensors of torch.distributed.tensor and ours, each as the other; what other libraries get to see of our memory."""

import numpy as np
import pytest
import torch
from torchrun import expect_all_well

import shardwise as sw
from shardwise import EnumerableShard, Partial, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks


def test_four_processes(tmp_path):
    expect_all_well("conversion_program.py", 4, "layouts,torchs_own,given_by_mistake,modules,loaded,partials", tmp_path)


def test_slices_of_a_mesh_keep_its_groups(tmp_path):
    expect_all_well("conversion_program.py", 4, "slices", tmp_path)
    expect_all_well("conversion_program.py", 4, "slices_loaded", tmp_path)
    expect_all_well("conversion_program.py", 2, "slices_loaded_by_half", tmp_path)


def test_a_tensors_mesh_knows_its_root_where_the_program_has_let_go_of_it(tmp_path):
    expect_all_well("conversion_program.py", 4, "slices_kept_by_tensors", tmp_path)


def test_slices_of_a_mesh_keep_their_groups_where_ranks_of_it_are_missing(tmp_path):
    expect_all_well("conversion_program.py", 8, "slices_of_eight", tmp_path)
    for _ in range(2):  # what was loaded is saved likewise
        expect_all_well("conversion_program.py", 4, "slices_of_eight_loaded_by_four", tmp_path)


X = torch.arange(12.0).view(6, 2)
PIECES = [ShardMetadata((0, 0), (2, 1), 1), ShardMetadata((2, 0), (4, 1), 1), ShardMetadata((0, 1), (6, 1), 0)]


@pytest.mark.parametrize(
    "placement, words",
    [
        (Shard(0, sizes=[1, 5]), r"cannot hold Shard\(0, sizes=\[1, 5\]\).*Redistribute the tensor to \[Shard\(0\)\]"),
        (EnumerableShard(PIECES), r"cannot hold EnumerableShard"),
        (Shard(0), "ranks are threads here"),
    ],
)
def test_what_torch_cannot_hold_is_an_error_on_every_rank(placement, words):
    def body(rank):
        ours = sw.distribute_tensor(X, sw.init_device_mesh("cpu", (2,)), [placement])
        with pytest.raises(ValueError, match=r"\[to_torch\] .*" + words):
            sw.to_torch(ours)

    run_ranks(2, body)


def test_pieces_are_shared_with_numpy_and_dlpack():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ours = sw.distribute_tensor(X, mesh, [Shard(0, sizes=[1, 5])])
        local = ours.to_local()
        for shared in (
            torch.from_dlpack(local),
            torch.from_numpy(local.numpy()),
            torch.from_numpy(np.from_dlpack(local)),
        ):
            assert shared.data_ptr() == local.data_ptr() and torch.equal(shared, X[:1] if rank == 0 else X[1:])
        local.numpy()[:] = -1
        assert (ours.full_tensor() == -1).all()
        with pytest.raises(ValueError, match=r"\[numpy\] rank \d does not hold all values .*full_tensor\(\)"):
            np.asarray(ours)  # one rank may read alone, so nothing is gathered
        wrapper = sw.distribute_tensor(X, mesh, [EnumerableShard(PIECES)]).to_local()
        if rank == 1:
            assert [piece.numpy().tolist() for piece in wrapper.shards] == [X[:2, :1].tolist(), X[2:, :1].tolist()]

    run_ranks(2, body)


@pytest.mark.parametrize(
    "read", [torch.Tensor.data_ptr, torch.from_dlpack, np.from_dlpack], ids=["data_ptr", "torch", "numpy"]
)
def test_memory_of_all_values_is_there_where_a_rank_holds_them(read):
    read = sw.DTensor.data_ptr if read is torch.Tensor.data_ptr else read

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = sw.distribute_tensor(X, mesh, [Replicate()])
        here = sw.distribute_tensor(X, mesh, [Shard(0, sizes=[6, 0])])
        assert isinstance(read(whole), int) or (np.asarray(read(whole)) == X.numpy()).all()
        for tensor in (
            here,
            sw.distribute_tensor(X, mesh, [Shard(1)]),
            sw.distribute_tensor(X, mesh, [Partial("max")]),
        ):
            if tensor is here and rank == 0:
                read(tensor)
                continue
            with pytest.raises(
                ValueError, match=rf"rank {rank} does not hold all values of .*to_local\(\).*full_tensor\(\)"
            ):
                read(tensor)

    run_ranks(2, body)


def test_a_wrapper_of_torch_is_understood_and_given_back():
    from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper as TorchsWrapper

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        pieces = [X[3 * rank : 3 * rank + 1].clone(), X[3 * rank + 1 : 3 * rank + 3].clone()]
        wrapper = TorchsWrapper(pieces, [(3 * rank, 0), (3 * rank + 1, 0)])
        ours = sw.DTensor.from_local(wrapper, mesh, [Shard(0)])
        assert torch.equal(ours.full_tensor(), X)
        assert ours.to_local() is wrapper
        with pytest.raises(
            ValueError, match=r"\[distribute_tensor\] .* for a LocalShardsWrapper use DTensor.from_local"
        ):
            sw.distribute_tensor(wrapper, mesh, [Shard(0)])

    run_ranks(2, body)
