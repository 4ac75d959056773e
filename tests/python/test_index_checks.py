"""Indices out of range: one error on all ranks, and messages of calls, in which the check goes along where it can."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.debug import CommDebugMode
from shardwise.testing import run_ranks

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
UNEVEN = Shard(0, sizes=[3, 0, 4, 1])
X = torch.arange(32.0, dtype=torch.float64).view(8, 4)
IDS = torch.tensor([0, 7, 3, 3, 5, 1, 6, 2])
BAD_AT_THE_END = torch.tensor([0, 7, 3, 3, 5, 1, 6, 8])
BAD_AT_BOTH_ENDS = torch.tensor([-20, 7, 3, 3, 5, 1, 6, 9])


def places(ids):
    """Indices of 4 columns, out of range where `ids` are."""
    return torch.where((ids >= 0) & (ids < 8), ids % 4, ids)


def loss(reduction, **options):
    return lambda x, ids: F.cross_entropy(x, places(ids), reduction=reduction, **options)


CALLS = {
    "index": lambda x, ids: x[ids],
    "index of columns": lambda x, ids: x[:, places(ids)],
    "index_select": lambda x, ids: x.index_select(0, ids),
    "index of many": lambda x, ids: x[ids[:, None].expand(-1, 64)],  # the indices have more bytes than x
    "index of two dims": lambda x, ids: x[ids, places(ids)],
    "take": lambda x, ids: x.take(ids * 4),
    "put": lambda x, ids: x.put(ids * 4, ids.to(x.dtype)),
    "put_": lambda x, ids: x.clone().put_(ids * 4, ids.to(x.dtype), accumulate=True),
    "gather": lambda x, ids: x.gather(1, places(ids)[:, None]),
    "gather along rows": lambda x, ids: x.gather(0, ids[:, None].expand(-1, 4)),
    "scatter along rows": lambda x, ids: x.scatter(0, ids[:, None].expand(-1, 4), -1.0),
    "scatter_add": lambda x, ids: x.scatter_add(0, ids[:, None].expand(-1, 4), x),
    "scatter_reduce": lambda x, ids: x.scatter_reduce(0, ids[:, None].expand(-1, 4), x, "amax"),
    "scatter": lambda x, ids: x.scatter(1, places(ids)[:, None], -1.0),
    "scatter_": lambda x, ids: x.clone().scatter_(0, ids[:, None], -1.0),
    "scatter_ of columns": lambda x, ids: x.clone().scatter_(1, places(ids)[:, None], -1.0),
    "scatter_add_": lambda x, ids: x.clone().scatter_add_(0, ids[:, None].expand(-1, 4), x),
    "index_put": lambda x, ids: x.index_put((ids,), x, accumulate=True),
    "index_put_": lambda x, ids: x.clone().index_put_((ids,), x[0, 0], accumulate=True),
    "index_put_ of two dims": lambda x, ids: x.clone().index_put_((ids, places(ids)), ids.to(x.dtype), accumulate=True),
    "index_add": lambda x, ids: x.index_add(0, ids, x),
    "index_copy": lambda x, ids: x.index_copy(0, ids, x),
    "index_copy_": lambda x, ids: x.clone().index_copy_(0, ids, x),
    "index_reduce": lambda x, ids: x.index_reduce(0, ids, x, "amax"),
    "index_fill_": lambda x, ids: x.clone().index_fill_(0, ids, -1.0),
    "embedding": lambda x, ids: F.embedding(ids, x),
    "mean loss": loss("mean"),
    "weighted mean loss": lambda x, ids: loss("mean", weight=x[0].detach())(x, ids),
    "smooth mean loss": loss("mean", label_smoothing=0.1),
    "sum of losses": loss("sum"),
    "losses": loss("none"),
}

CASES = [
    # call, mesh, operand, indices, messages
    ("index", (4,), [WHOLE], [ROWS], 1),  # the check alone
    ("index", (4,), [ROWS], [ROWS], 1),
    ("index", (4,), [UNEVEN], [UNEVEN], 1),
    ("index", (4,), [UNEVEN], [WHOLE], 0),
    ("index", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 1),
    ("index", (2, 2), [WHOLE, ROWS], [ROWS, ROWS], 2),
    ("index of columns", (4,), [UNEVEN], [UNEVEN], 1),
    ("index_select", (4,), [COLUMNS], [ROWS], 1),
    ("index of many", (4,), [ROWS], [ROWS], 1),  # x and the check
    ("index of two dims", (4,), [UNEVEN], [ROWS], 1),
    ("index of two dims", (4,), [WHOLE], [ROWS], 2),  # the checks alone
    ("take", (4,), [ROWS], [ROWS], 1),
    ("take", (4,), [WHOLE], [ROWS], 1),
    ("take", (4,), [COLUMNS], [UNEVEN], 1),  # x does not move
    ("put", (4,), [WHOLE], [UNEVEN], 1),
    ("put", (4,), [ROWS], [ROWS], 1),
    ("put", (4,), [COLUMNS], [ROWS], 2),  # one is of the values
    ("put", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 2),
    ("put_", (4,), [UNEVEN], [ROWS], 1),
    ("put_", (4,), [COLUMNS], [ROWS], 2),
    ("gather", (4,), [UNEVEN], [UNEVEN], 1),
    ("gather", (4,), [COLUMNS], [ROWS], 1),
    ("gather along rows", (4,), [ROWS], [ROWS], 1),  # both operands and the check
    ("gather along rows", (4,), [COLUMNS], [UNEVEN], 1),
    ("gather along rows", (4,), [WHOLE], [ROWS], 1),  # the check alone
    ("scatter along rows", (4,), [ROWS], [ROWS], 1),
    ("scatter along rows", (4,), [WHOLE], [UNEVEN], 1),
    ("scatter_add", (4,), [ROWS], [ROWS], 1),
    ("scatter_reduce", (4,), [ROWS], [ROWS], 1),  # all three operands and the check
    ("scatter_reduce", (4,), [COLUMNS], [ROWS], 1),
    ("scatter_reduce", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 2),  # one along each mesh dim
    ("scatter", (4,), [ROWS], [ROWS], 1),
    ("scatter_", (4,), [ROWS], [ROWS], 1),
    ("scatter_", (4,), [UNEVEN], [UNEVEN], 1),
    ("scatter_", (4,), [WHOLE], [ROWS], 1),
    ("scatter_ of columns", (4,), [COLUMNS], [ROWS], 1),
    ("scatter_ of columns", (4,), [ROWS], [ROWS], 1),  # the check alone
    ("scatter_add_", (4,), [ROWS], [ROWS], 2),  # one is of the values
    ("scatter_add_", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 2),
    ("index_put", (4,), [ROWS], [ROWS], 1),  # all three operands and the check
    ("index_put", (4,), [WHOLE], [ROWS], 1),
    ("index_put_", (4,), [ROWS], [ROWS], 3),  # two are of x[0, 0]
    ("index_put_ of two dims", (4,), [ROWS], [UNEVEN], 1),
    ("index_put_ of two dims", (4,), [WHOLE], [ROWS], 1),
    ("index_add", (4,), [UNEVEN], [UNEVEN], 1),
    ("index_copy", (4,), [WHOLE], [ROWS], 1),
    ("index_copy", (4,), [ROWS], [UNEVEN], 1),
    ("index_copy", (4,), [COLUMNS], [ROWS], 1),
    ("index_copy_", (4,), [UNEVEN], [ROWS], 1),
    ("index_copy_", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 1),
    ("index_reduce", (4,), [ROWS], [ROWS], 1),
    ("index_reduce", (4,), [WHOLE], [UNEVEN], 1),
    ("index_fill_", (4,), [WHOLE], [ROWS], 1),
    ("index_fill_", (4,), [UNEVEN], [ROWS], 1),
    ("embedding", (4,), [WHOLE], [ROWS], 1),
    ("embedding", (4,), [ROWS], [ROWS], 2),
    ("mean loss", (4,), [ROWS], [ROWS], 1),
    ("mean loss", (4,), [UNEVEN], [UNEVEN], 1),
    ("mean loss", (4,), [UNEVEN], [WHOLE], 0),
    ("mean loss", (4,), [WHOLE], [ROWS], 1),
    ("mean loss", (4,), [COLUMNS], [ROWS], 3),
    ("mean loss", (2, 2), [ROWS, COLUMNS], [ROWS, WHOLE], 3),
    ("weighted mean loss", (4,), [ROWS], [ROWS], 3),  # two are of x[0]
    ("smooth mean loss", (4,), [ROWS], [ROWS], 2),
    ("sum of losses", (4,), [ROWS], [ROWS], 1),  # the check alone
    ("sum of losses", (4,), [COLUMNS], [ROWS], 3),
    ("losses", (4,), [UNEVEN], [UNEVEN], 1),
    ("losses", (4,), [COLUMNS], [ROWS], 3),
]


def outcomes(shape, of_x, of_ids, call, ids, ranks=None):
    """By rank: the error of `call`, or None, and the number of its messages. Ranks go on together, and results are dense."""
    found = [None] * 4
    dense = call(X, ids) if ids is IDS else None

    def body(rank):
        mesh = sw.DeviceMesh("cpu", ranks) if ranks else sw.init_device_mesh("cpu", shape)
        x = sw.distribute_tensor(X, mesh, of_x, src_data_rank=None)
        own = sw.distribute_tensor(ids, mesh, of_ids, src_data_rank=None)
        error = None
        with CommDebugMode() as sent:
            try:
                result = call(x, own)
            except (IndexError, RuntimeError) as caught:
                error = caught
        found[rank] = error, sent.get_total_counts()
        if mesh.get_coordinate() is not None:
            if dense is not None:
                torch.testing.assert_close(result.full_tensor(), dense)
            assert torch.equal(x.full_tensor(), X)

    run_ranks(4, body)
    return found


@pytest.mark.parametrize(("name", "shape", "of_x", "of_ids", "n_messages"), CASES)
def test_a_check_goes_along_and_all_ranks_have_its_error(name, shape, of_x, of_ids, n_messages):
    good = outcomes(shape, of_x, of_ids, CALLS[name], IDS)
    assert [error for error, _ in good] == [None] * 4
    assert {n for _, n in good} == {n_messages}
    for ids in (BAD_AT_THE_END, BAD_AT_BOTH_ENDS):
        bad = outcomes(shape, of_x, of_ids, CALLS[name], ids)
        assert len({(type(error), str(error).replace("\n", " ")) for error, _ in bad}) == 1
        assert bad[0][0] is not None


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("of_ids", [ROWS, WHOLE], ids=str)
def test_ranks_outside_the_mesh_go_on(name, of_ids):
    good = outcomes(None, [ROWS], [of_ids], CALLS[name], IDS, ranks=[2, 0])
    assert [error for error, _ in good] == [None] * 4
    bad = outcomes(None, [ROWS], [of_ids], CALLS[name], BAD_AT_THE_END, ranks=[2, 0])
    assert [error is not None for error, _ in bad] == [True, False, True, False]
    assert str(bad[0][0]) == str(bad[2][0])


def test_a_weight_that_is_not_a_number_is_no_bad_target():
    weight = torch.tensor([1.0, torch.nan, 2.0, 3.0], dtype=torch.float64)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x, targets = (sw.distribute_tensor(each, mesh, [ROWS], src_data_rank=None) for each in (X, IDS % 4))
        weights = sw.distribute_tensor(weight, mesh, [WHOLE], src_data_rank=None)
        assert F.cross_entropy(x, targets, weights).full_tensor().isnan()
        assert F.cross_entropy(x, targets * 0 - 100).full_tensor().isnan()  # as torch's mean of no targets

    run_ranks(4, body)


@pytest.mark.parametrize("of_ids", [ROWS, WHOLE], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_index_reduce_has_an_index_error_of_its_own(of_ids, in_place):
    def call(x, ids):
        return (x.clone().index_reduce_ if in_place else x.index_reduce)(0, ids, x, "amax")

    errors = {(type(error), str(error)) for error, _ in outcomes((4,), [ROWS], [of_ids], call, BAD_AT_THE_END)}
    assert len(errors) == 1
    kind, text = errors.pop()
    assert kind is IndexError
    assert text.startswith("[aten::index_reduce] index 8 is out of bounds for dimension 0 with size 8")
