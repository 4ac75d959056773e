"""Copies of a DistributedEmbedding, and optimizers whose groups are gone."""

import copy

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.testing import run_ranks

SHAPES = {"rows": (41, 6), "whole": (30, 4), "small": (5, 4)}
PLANS = {
    "several treatments": {"row_slice_threshold": 200, "data_parallel_threshold": 20},
    "columns": {"strategy": "memory_balanced", "column_slice_threshold": 100},
}


def layer_of(**options):
    torch.manual_seed(1)
    return sw.DistributedEmbedding([sw.TableConfig(name, *shape) for name, shape in SHAPES.items()], **options)


def ids_of(rank):
    return [torch.tensor([rank, 3, 4]) for _ in SHAPES]


def train(layer, optimizer, rank, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        sum(vectors.square().sum() for vectors in layer(ids_of(rank))).backward()
        optimizer.step()


def values(layer):
    return [torch.from_numpy(array) for array in layer.get_weights(all_ranks=True)]


def expect_equal(layer, expected):
    torch.testing.assert_close(values(layer), expected, rtol=0, atol=0)


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_a_copy_has_tables_of_its_own(options):
    def body(rank):
        layer = layer_of(**options, input_names=["a", "b", "c"], gradients="sum")
        layer.tables["small"].requires_grad_(False)
        layer.eval()
        before = values(layer)
        with sw.CommDebugMode() as counted:
            copied = copy.deepcopy(layer)
        assert counted.get_total_counts() == 0
        expect_equal(copied, before)
        assert type(copied) is type(layer) and copied.plan == layer.plan and copied.mesh is layer.mesh
        assert not copied.training and copied.feature_names == ["a", "b", "c"]
        assert [p.requires_grad for p in copied.parameters()] == [True, True, False]
        torch.testing.assert_close(copied(ids_of(rank)), layer(ids_of(rank)), rtol=0, atol=0)
        # Each trains by itself, the copy as the first would have.
        train(layer, sw.optim.FusedAdagrad([layer.tables["rows"], layer.tables["whole"]], lr=0.1), rank)
        expect_equal(copied, before)
        after = values(layer)
        train(copied, sw.optim.FusedAdagrad([copied.tables["rows"], copied.tables["whole"]], lr=0.1), rank)
        expect_equal(copied, after)
        expect_equal(layer, after)
        with pytest.raises(RuntimeError, match=r"tables\.rows is"):
            copied.load_state_dict({"tables.rows": torch.zeros(2, 2)}, strict=False)
        copied.load_state_dict(dict(zip((f"tables.{name}" for name in SHAPES), before, strict=True)))
        expect_equal(copied, before)
        expect_equal(layer, after)

    run_ranks(3, body)


def test_gradients_and_models_are_copied():
    def body(rank):
        layer = layer_of(row_slice_threshold=200)
        train(layer, torch.optim.SGD(layer.parameters(), lr=0.1), rank, steps=1)
        model = nn.ModuleDict({"one": layer, "other": layer, "dense": nn.Linear(2, 2)})
        copied = copy.deepcopy(model)
        assert copied["one"] is copied["other"] and copied["one"] is not layer
        for own, expected in zip(copied["one"].parameters(), layer.parameters(), strict=True):
            assert own.grad is not expected.grad and own.grad.placements == expected.grad.placements
            torch.testing.assert_close(own.grad.full_tensor(), expected.grad.full_tensor(), rtol=0, atol=0)

    run_ranks(3, body)


def test_tables_in_files_are_not_copied(tmp_path):
    def body(rank):
        layer = layer_of(storage={"whole": sw.FileStorage(tmp_path, cache_rows=20)})
        with pytest.raises(
            NotImplementedError, match=r"tables \['whole'\] lie in files, .* load this one's state_dict"
        ):
            copy.deepcopy(layer)

    run_ranks(2, body)


def test_a_step_without_its_group_says_so():
    def body(rank):
        layer = layer_of()
        optimizer = sw.optim.FusedSGD(layer.parameters(), lr=0.1)
        before = values(layer)
        optimizer.param_groups.clear()
        with pytest.raises(
            RuntimeError, match=r"\[FusedSGD\] a table of shape \[\d+, \d\] is in none of .* close\(\) the optimizer"
        ):
            train(layer, optimizer, rank, steps=1)
        expect_equal(layer, before)
        optimizer.close()
        sum(vectors.sum() for vectors in layer(ids_of(rank))).backward()
        assert all(table.grad is not None for table in layer.parameters())

    run_ranks(3, body)
