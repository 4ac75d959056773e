"""Tables of 8-bit rows against the dense tables that they stand for: every layout, both exchanges, bags, and what is sent."""

import pytest
import torch
import torch.nn.functional as F
from layouts import TABLE_SHAPE, TABLES

import shardwise as sw
from shardwise import EnumerableShard, Partial, Replicate, Shard
from shardwise.testing import run_ranks

N_ROWS, N_COLUMNS = TABLE_SHAPE
EXCHANGES = ["auto", "reduce_scatter", "all_to_all"]
by_name = {"argvalues": TABLES, "ids": [case.name for case in TABLES]}


def dense_table(dtype=torch.float32):
    table = torch.randn(TABLE_SHAPE, generator=torch.Generator().manual_seed(1))
    table[3] = 0.25  # no range
    table[4] = 5 + table[4] * 1e-3  # a narrow one, far from 0
    return table.to(dtype)


def rounded(table):
    """The formula, written out."""
    rows = table.double()
    least = rows.amin(1, keepdim=True).float().double()
    scale = (rows.amax(1, keepdim=True).float() / 255 - least.float() / 255).double()
    steps = torch.where(scale > 0, ((rows - least) / scale.clamp_min(1e-300)).round().clamp(0, 255), 0)
    return steps * scale + least, scale


def layouts_of_ids(mesh):
    yield [Replicate()] * mesh.ndim
    yield [Shard(0)] * mesh.ndim
    if mesh.ndim > 1:
        yield [Shard(0), Replicate()]
        yield [Replicate(), Shard(0)]


def assert_equal(tensor, plain, tolerance=1e-5):
    full = tensor.full_tensor()
    if tensor.device_mesh.get_coordinate() is not None:
        torch.testing.assert_close(full, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", **by_name)
def test_every_layout_gives_the_formula(case, dtype):
    dense = dense_table(dtype)
    expected, scale = rounded(dense)
    assert ((expected - dense.double()).abs() <= scale / 2 + 1e-6).all()

    def body(rank):
        source = sw.distribute_tensor(dense, case.mesh(), case.placements)
        table = sw.quantize_rows(source)
        assert_equal(source, dense)
        assert table.shape == TABLE_SHAPE and table.placements == tuple(case.placements)
        assert "int8" in repr(table)
        whole = table.dequantize()
        assert whole.placements == tuple(case.placements) and whole.dtype == dtype
        assert_equal(whole, expected.to(dtype), 1e-6 if dtype.itemsize > 2 else 1e-2)
        local = whole.to_local()
        if not isinstance(case.placements[0], EnumerableShard) and local.dim() == 2:  # on a member
            assert table.nbytes == local.shape[0] * ((local.shape[1] + 3) // 4 * 4 + 8)

    run_ranks(case.n_ranks, body)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("case", **by_name)
def test_lookups_are_those_of_the_dequantised_table(case, exchange):
    expected = rounded(dense_table())[0].float()
    ids = torch.randint(0, N_ROWS, (4, 3), generator=torch.Generator().manual_seed(2))
    weights = torch.rand(4, 3, generator=torch.Generator().manual_seed(3))
    offsets = torch.tensor([0, 0, 5, 12])

    def body(rank):
        mesh = case.mesh()
        table = sw.quantize_rows(sw.distribute_tensor(dense_table(), mesh, case.placements))
        whole = table.dequantize()
        with sw.lookup_exchange(exchange):
            for placements in layouts_of_ids(mesh):
                own = sw.distribute_tensor(ids, mesh, placements)
                rows = table.lookup(own)
                # Rows for equal ids are sent at once, packed; those of a dense table when the result moves.
                for here, of_dense in zip(rows.placements, F.embedding(own, whole).placements, strict=True):
                    is_sent = of_dense.is_partial() and exchange != "reduce_scatter"
                    assert here == of_dense or (is_sent and here.is_replicate())
                assert_equal(rows, expected[ids])
                for mode in ("sum", "mean", "max"):
                    bags = table.lookup_bags(own, mode=mode, padding_idx=2)
                    of_whole = F.embedding_bag(own, whole, mode=mode, padding_idx=2)
                    assert bags.placements == of_whole.placements
                    assert_equal(bags, F.embedding_bag(ids, expected, mode=mode, padding_idx=2))
                own_weights = sw.distribute_tensor(weights, mesh, placements)
                bags = table.lookup_bags(own, mode="sum", per_sample_weights=own_weights)
                assert_equal(bags, F.embedding_bag(ids, expected, mode="sum", per_sample_weights=weights))
            replicas = [Replicate()] * mesh.ndim
            flat, begins = (sw.distribute_tensor(t, mesh, replicas) for t in (ids.view(-1), offsets))
            for last in (False, True):
                bags = table.lookup_bags(flat, begins, include_last_offset=last)
                assert_equal(bags, F.embedding_bag(ids.view(-1), expected, offsets, include_last_offset=last))

    run_ranks(case.n_ranks, body)


def test_rows_travel_packed():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(torch.rand(1000, 64), mesh, [Shard(0)])
        ids = sw.distribute_tensor(
            torch.randperm(1000, generator=torch.Generator().manual_seed(rank)), mesh, [Shard(0)]
        )
        quantized = sw.quantize_rows(table)
        assert quantized.nbytes == 500 * (64 + 8)

        def bytes_of(look_up):
            with sw.lookup_exchange("all_to_all"), sw.CommDebugMode() as trace:
                look_up(ids)
            return trace.bytes_received()

        requests = bytes_of(lambda ids: F.embedding(ids, table[:, :0]))
        packed, whole = bytes_of(quantized.lookup) - requests, bytes_of(lambda ids: F.embedding(ids, table)) - requests
        assert packed * 256 == whole * 72

    run_ranks(2, body)


@pytest.mark.parametrize("case", **by_name)
def test_every_layout_is_saved_and_loaded(case):
    expected = rounded(dense_table())[0].float()

    def body(rank):
        mesh = case.mesh()
        table = sw.quantize_rows(sw.distribute_tensor(dense_table(), mesh, case.placements))
        state = table.state_dict()
        assert list(state) == ["codes", "offsets", "scales"]
        assert state["codes"].dtype == torch.uint8 and state["codes"].placements == tuple(case.placements)
        assert state["scales"].shape == (N_ROWS,) and state["scales"].dtype == torch.float32
        new = sw.QuantizedTable.zeros(TABLE_SHAPE, device_mesh=mesh, placements=case.placements)
        assert_equal(new.dequantize(), torch.zeros(TABLE_SHAPE))
        new.load_state_dict(state)
        assert_equal(new.dequantize(), expected)
        assert all(
            torch.equal(a.full_tensor(), b.full_tensor()) for a, b in zip(new.state_dict().values(), state.values())
        )
        other = sw.QuantizedTable.zeros(TABLE_SHAPE, device_mesh=mesh)  # replicated
        other.load_state_dict(state)
        assert_equal(other.dequantize(), expected)
        new.load_state_dict(other.state_dict())
        assert_equal(new.dequantize(), expected)
        ids = sw.distribute_tensor(torch.tensor([3, 0, 3]), mesh, [Replicate()] * mesh.ndim)
        assert_equal(new.lookup(ids), expected[[3, 0, 3]])
        table.load_state_dict({name: tensor * 0 for name, tensor in state.items()})
        assert_equal(new.dequantize(), expected)  # memory of its own

    run_ranks(case.n_ranks, body)


def load(**changed):
    def call(mesh):
        table = sw.quantize_rows(sw.distribute_tensor(dense_table(), mesh, [Shard(0)]))
        given = table.state_dict() | {name: make(mesh) for name, make in changed.items()}
        before = table.dequantize().full_tensor()
        try:
            table.load_state_dict(given)
        finally:
            assert torch.equal(table.dequantize().full_tensor(), before)

    return call


BAD = {
    "Missing: []; unknown: [rows]": (ValueError, load(rows=lambda mesh: sw.zeros(3, device_mesh=mesh))),
    "codes is a torch.Tensor": (TypeError, load(codes=lambda mesh: torch.zeros(TABLE_SHAPE, dtype=torch.uint8))),
    "scales are Double, but must be Float": (
        TypeError,
        load(scales=lambda mesh: sw.zeros(N_ROWS, dtype=torch.float64, device_mesh=mesh)),
    ),
    f"offsets have shape [3], but this table needs shape [{N_ROWS}]": (
        ValueError,
        load(offsets=lambda mesh: sw.zeros(3, device_mesh=mesh)),
    ),
    "row 1 has a scale or an offset that is not finite": (
        ValueError,
        load(
            scales=lambda mesh: sw.distribute_tensor(
                torch.tensor([1.0, float("nan")] + [1.0] * (N_ROWS - 2)), mesh, [Shard(0)]
            )
        ),
    ),
    "a table of shape [4] has 1 dims": (ValueError, lambda mesh: sw.QuantizedTable.zeros([4], device_mesh=mesh)),
    "lookups cannot give Long": (
        TypeError,
        lambda mesh: sw.QuantizedTable.zeros([4, 2], dtype=torch.int64, device_mesh=mesh),
    ),
    "packed rows cannot be added up": (
        ValueError,
        lambda mesh: sw.QuantizedTable.zeros([4, 2], device_mesh=mesh, placements=[Partial()]),
    ),
    "Wrap it with distribute_tensor": (TypeError, lambda mesh: sw.quantize_rows(torch.rand(4, 2))),
    "rows cannot be Byte. Use int8": (
        TypeError,
        lambda mesh: sw.quantize_rows(sw.zeros(4, 2, device_mesh=mesh), dtype=torch.uint8),
    ),
    "the table is Long": (
        TypeError,
        lambda mesh: sw.quantize_rows(sw.distribute_tensor(torch.ones(4, 2, dtype=torch.long), mesh, [Shard(0)])),
    ),
    "row 2 of the table has a number that is not finite": (
        ValueError,
        lambda mesh: sw.quantize_rows(
            sw.distribute_tensor(torch.tensor([[1.0], [2.0], [float("nan")], [float("inf")]]), mesh, [Shard(0)])
        ),
    ),
    "id 4 is no row of the table": (
        IndexError,
        lambda mesh: sw.quantize_rows(sw.zeros(4, 2, device_mesh=mesh, placements=[Shard(0)])).lookup(
            sw.distribute_tensor(torch.tensor([1, 4]), mesh, [Shard(0)])
        ),
    ),
    'mode "most" is unknown': (
        ValueError,
        lambda mesh: sw.quantize_rows(sw.zeros(4, 2, device_mesh=mesh)).lookup_bags(
            sw.distribute_tensor(torch.tensor([[1, 3]]), mesh, [Replicate()]), mode="most"
        ),
    ),
    "Give [bags, ids of a bag], or flat ones with offsets": (
        ValueError,
        lambda mesh: sw.quantize_rows(sw.zeros(4, 2, device_mesh=mesh)).lookup_bags(
            sw.distribute_tensor(torch.tensor([1, 3]), mesh, [Replicate()])
        ),
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_said_on_every_rank(words):
    kind, call = BAD[words]
    failed = []

    def body(rank):
        with pytest.raises(kind) as error:
            call(sw.init_device_mesh("cpu", (2,)))
        assert words in str(error.value)
        failed.append(rank)

    run_ranks(2, body)
    assert sorted(failed) == [0, 1]
