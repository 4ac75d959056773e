"""D9, issue's checkpoints: what each rank reads, files in and out, and what is wrong with either, on processes."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torchrun import expect_all_well, forked_ranks

import shardwise as sw
from shardwise.testing import run_ranks

PROGRAM = "embedding_checkpoint_program.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    expect_all_well(PROGRAM, 4, "save", folder)
    return folder


def test_each_rank_reads_its_own_bytes(saved):
    expect_all_well(PROGRAM, 3, "load", saved)
    expect_all_well(PROGRAM, 1, "load", saved)


def test_one_table_is_exported_to_safetensors(saved):
    with safe_open(saved / "by_rows.safetensors", framework="np") as file:
        assert list(file.keys()) == ["embedding.weight"]
        np.testing.assert_array_equal(file.get_tensor("embedding.weight"), np.load(saved / "by_rows.npy"))


def test_weights_are_files_that_numpy_maps(saved):
    for name in ("by_rows", "whole", "small"):
        array = np.load(saved / "weights" / f"{name}.npy", mmap_mode="r")
        np.testing.assert_array_equal(array, np.load(saved / f"{name}.npy"))


def test_packed_rows_go_to_other_ranks(tmp_path):
    for n_ranks in (4, 2, 3, 1):
        expect_all_well(PROGRAM, n_ranks, "packed", tmp_path)


def test_wrong_checkpoints_are_errors_on_all_ranks_and_nothing_is_loaded(saved):
    expect_all_well(PROGRAM, 3, "broken", saved)


def test_a_full_disk_and_a_killed_rank_leave_what_was_saved_before(saved):
    expect_all_well(PROGRAM, 2, "full_disk", saved)
    result = forked_ranks(PROGRAM, 2, "killed", saved)
    assert result.returncode != 0 and "SIGKILL" in result.stderr
    expect_all_well(PROGRAM, 2, "load_values", saved)


def test_a_line_tells_of_progress_where_it_is_asked_for(saved):
    pytest.importorskip("tqdm")
    result = forked_ranks(PROGRAM, 3, "progress", saved)
    assert result.returncode == 0, result.stderr
    assert "loading: 100%" in result.stderr and "gathering" not in result.stderr


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_files_of_every_dtype_and_name(tmp_path, dtype):
    def body(rank):
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("a/b", 41, 6, dtype=dtype), sw.TableConfig("c", 5, 2, dtype=dtype)],
            row_slice_threshold=200,
            data_parallel_threshold=20,
        )
        whole = layer.get_weights(all_ranks=True)
        layer.save_weights(tmp_path)
        layer.export_safetensors(0, tmp_path / "table.safetensors")
        layer.reset_parameters()
        layer.set_weights(tmp_path)
        for own, expected in zip(layer.get_weights(all_ranks=True), whole, strict=True):
            np.testing.assert_array_equal(own, expected)
        with safe_open(tmp_path / "table.safetensors", framework="pt") as file:
            exported = file.get_tensor("a/b")
        assert exported.dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(exported.to(torch.float64).numpy(), whole[0].astype("float64"))

    run_ranks(3, body)


def test_files_travel_in_chunks_and_each_row_once(tmp_path, monkeypatch):
    from shardwise.distributed_embedding import weights

    monkeypatch.setattr(weights, "CHUNK_BYTES", 10 * 6 * 4)

    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 41, 6)], row_slice_threshold=1)
        with sw.CommDebugMode() as mode:
            layer.save_weights(tmp_path)
        rows = [event for event in mode.events if event.op == "DistributedEmbedding.get_weights"]
        assert sum(event.bytes_sent for event in rows) == (0 if rank == 0 else layer.pieces(0)[0][0].nbytes)
        assert max(event.bytes_sent for event in rows) <= weights.CHUNK_BYTES
        np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), layer.get_weights(all_ranks=True)[0])

    run_ranks(3, body)


def test_state_dicts_of_plain_tensors_and_of_other_plans():
    def body(rank):
        shapes = {"a": (40, 8), "b": (6, 4)}
        configs = [sw.TableConfig(name, *shape) for name, shape in shapes.items()]
        layer = sw.DistributedEmbedding(configs, row_slice_threshold=100)
        other = sw.DistributedEmbedding(
            configs, strategy="basic", data_parallel_threshold=30, column_slice_threshold=100
        )
        plain = {f"tables.{name}": torch.arange(float(r * c)).view(r, c) for name, (r, c) in shapes.items()}
        assert list(layer.state_dict()) == ["tables.a", "tables.b"]
        layer.load_state_dict(plain)
        other.load_state_dict(layer.state_dict())
        for own, expected in zip(other.get_weights(all_ranks=True), plain.values(), strict=True):
            np.testing.assert_array_equal(own, expected.numpy())
        other([torch.tensor([1]), torch.tensor([2])])  # lookups still read the layer's memory
        layer.load_state_dict({"tables.a": plain["tables.a"] + 1}, strict=False)
        np.testing.assert_array_equal(layer.get_weights(all_ranks=True)[0], plain["tables.a"].numpy() + 1)

    run_ranks(3, body)
