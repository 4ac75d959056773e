"""Random operators on DTensors: the same numbers on any mesh and in any layout, governed by torch.manual_seed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

SIZE = (9, 5, 3)
# mesh, placements
LAYOUTS = [
    ((1,), [Replicate()]),
    ((2,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((3,), [Shard(0, sizes=[0, 7, 2])]),
    ((3,), [Partial()]),
    ((2, 2), [Shard(0), Shard(0)]),
    ((2, 2), [Shard(2), Replicate()]),
    ((8,), [Shard(1)]),
    ((8,), [Replicate()]),
]

DRAWS = {
    "uniform_": lambda x: x.uniform_(-1, 2),
    "normal_": lambda x: x.normal_(1, 2),
    "complex normal_": lambda x: x.to(torch.complex64).normal_(1j.imag, 2),
    "log_normal_": lambda x: x.log_normal_(0.1, 0.2),
    "exponential_": lambda x: x.exponential_(2),
    "geometric_": lambda x: x.geometric_(0.3),
    "cauchy_": lambda x: x.cauchy_(1, 2),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "bernoulli_ broadcasts": lambda x: torch.empty_like(x).bernoulli_(x[:1].sigmoid()),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli.p": lambda x: torch.bernoulli(x, 0.3),
    "random_": lambda x: x.random_(),
    "random_ to": lambda x: x.random_(7),
    "random_ from": lambda x: x.to(torch.int64).random_(-3, 2**62),
    **{
        f"random_ of {dtype}": lambda x, dtype=dtype: x.to(dtype).random_(3, 60000).to(torch.int64)
        for dtype in (torch.uint16, torch.uint32, torch.uint64)
    },
    "random_ of all uint32 from 3 on": lambda x: x.to(torch.uint32).random_(3, None).to(torch.int64),
    "randint_like of uint16": lambda x: torch.randint_like(x, 3, 60000, dtype=torch.uint16).to(torch.int64),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 3, 9),
    "randint_like to a tensor": lambda x: torch.randint_like(x, torch.tensor(9)),
    "normal": lambda x: torch.normal(x, x.exp()),
    "normal mean": lambda x: torch.normal(x, 2.0),
    "normal deviation": lambda x: torch.normal(1.0, x.exp()),
    "poisson": lambda x: torch.poisson(x.mul(3).exp()),
    "binomial": lambda x: torch.binomial(x.abs().mul(9).floor(), x[:1].sigmoid()),
    "gamma": lambda x: torch._standard_gamma(x.exp()),
    "dirichlet": lambda x: torch._sample_dirichlet(x.exp()),
    "multinomial": lambda x: x[:, :, 0].exp().multinomial(3),
    "multinomial one": lambda x: x[0, 0].exp().multinomial(1),
    "multinomial replaced": lambda x: x[:, 0].exp().multinomial(6, replacement=True),
    "dropout": lambda x: F.dropout(x, 0.4),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "dropout in place": lambda x: F.dropout(x, 0.4, inplace=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_dropout": lambda x: F.dropout1d(x, 0.4),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu(x, training=True, inplace=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=-1),
    "init.kaiming": nn.init.kaiming_uniform_,
    "init.xavier": nn.init.xavier_normal_,
}


def input_of(mesh, placements):
    dense = torch.linspace(-1, 1, 135).view(SIZE)
    return sw.distribute_tensor(dense, mesh, [Replicate()] * mesh.ndim).redistribute(placements=placements)


def drawn(shape, placements, draw, seed=5):
    """Two draws in a row, gathered; then a third one on all ranks, one outside the mesh included, which must agree."""
    n_members = torch.Size(shape).numel()

    def body(rank):
        mesh = sw.DeviceMesh("cpu", torch.arange(n_members).view(shape))
        everyone = sw.init_device_mesh("cpu", (n_members + 1,))
        torch.manual_seed(seed)
        draws = [draw(input_of(mesh, placements)).full_tensor() for _ in range(2)]
        return draws, sw.rand(3, device_mesh=everyone).to_local()

    results = run_ranks(n_members + 1, body)
    for draws, last in results[1:]:
        assert torch.equal(last, results[0][1]), "ranks are at different places of the generator"
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(results[0][0], draws) if theirs.numel() > 0)
    return results[0][0]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.filterwarnings("ignore:.*has no sharding rule")
def test_numbers_are_the_same_in_every_layout(name):
    draw = DRAWS[name]
    expected = drawn(*LAYOUTS[0], draw)
    assert not torch.equal(expected[0], expected[1]), "the second draw repeats the first"
    for shape, placements in LAYOUTS[1:]:
        for ours, theirs in zip(drawn(shape, placements, draw), expected):
            where = f"{placements} on {shape}"
            if name.endswith("_"):  # draws alone, bit for bit
                assert torch.equal(ours, theirs), where
            torch.testing.assert_close(ours, theirs, msg=lambda text, where=where: f"{where}: {text}")


@pytest.mark.parametrize(("std", "a", "b"), [(0.5, -2.0, 2.0), (1.0, 0.1, 0.2)])
def test_truncated_normal_numbers_lie_between_the_bounds(std, a, b):
    """Which elements are drawn again depends on values, so only ranks of the mesh call it."""

    def on(n_ranks, placement):
        def body(rank):
            torch.manual_seed(5)
            mesh = sw.init_device_mesh("cpu", (n_ranks,))
            weight = sw.zeros(20, 30, device_mesh=mesh, placements=[placement])
            return nn.init.trunc_normal_(weight, std=std, a=a, b=b).full_tensor()

        return run_ranks(n_ranks, body)[0]

    expected = on(1, Replicate())
    assert expected.min() >= a and expected.max() <= b and expected.std() > 0
    for n_ranks, placement in ((3, Shard(0)), (2, Shard(1, sizes=[0, 30]))):
        assert torch.equal(on(n_ranks, placement), expected)


def test_the_seed_decides():
    draw = DRAWS["normal_"]
    assert not torch.equal(drawn((2,), [Shard(0)], draw, seed=5)[0], drawn((2,), [Shard(0)], draw, seed=6)[0])


def test_shards_drop_different_elements():
    """A mask drawn alike on every shard would repeat."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        mask = F.dropout(sw.ones(64, 16, device_mesh=mesh, placements=[Shard(0)]), 0.5).full_tensor() > 0
        return mask.view(4, -1)

    masks = run_ranks(4, body)[0]
    for i in range(4):
        for j in range(i):
            assert not torch.equal(masks[i], masks[j])
            assert 0.3 < (masks[i] == masks[j]).float().mean() < 0.7


def test_dropout_scales_what_it_keeps_and_its_gradient_has_the_same_mask():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(40, 50, device_mesh=mesh, placements=[Shard(0, sizes=[3, 37])], requires_grad=True)
        y = F.dropout(x, 0.25)
        y.sum().backward()
        assert torch.equal(x.grad.full_tensor(), y.detach().full_tensor()) and x.grad.placements == x.placements
        kept = y.detach().full_tensor()
        assert kept.unique().tolist() == pytest.approx([0, 4 / 3]) and 0.7 < (kept > 0).float().mean() < 0.8
        assert torch.equal(F.dropout(x, 1.0).detach().full_tensor(), torch.zeros(40, 50))
        return True

    assert all(run_ranks(2, body))


def test_a_partial_sum_stays_partial_through_dropout():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        part = sw.DTensor.from_local(torch.ones(6, 4), mesh, [Partial()])
        with sw.debug.CommDebugMode() as trace:
            dropped = F.dropout(part, 0.5)
        return dropped.placements, trace.get_total_counts(), set(dropped.full_tensor().unique().tolist())

    assert run_ranks(2, body)[0] == ((Partial(),), 0, {0.0, 4.0})


def test_in_place_draws_send_nothing():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.zeros(7, 4, device_mesh=mesh, placements=[Shard(0, sizes=[0, 5, 2])])
        with sw.debug.CommDebugMode() as trace:
            x.normal_().uniform_().exponential_()
            F.dropout(x, 0.5)
            torch.rand_like(x)
        return trace.get_total_counts()

    assert run_ranks(3, body) == [0, 0, 0]


def test_a_generator_is_honoured_and_advanced():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.zeros(5, 4, device_mesh=mesh, placements=[Shard(0)])
        torch.manual_seed(1)
        mine = torch.Generator().manual_seed(3)
        first, second = (x.normal_(generator=mine).full_tensor() for _ in range(2))
        again = x.normal_(generator=torch.Generator().manual_seed(3)).full_tensor()
        default = x.normal_().full_tensor()
        assert torch.equal(first, again) and not torch.equal(first, second) and not torch.equal(first, default)
        assert not torch.equal(mine.get_state(), torch.Generator().manual_seed(3).get_state())
        return default

    torch.manual_seed(1)
    untouched = run_ranks(2, lambda rank: sw.zeros(5, 4, device_mesh=sw.init_device_mesh("cpu", (2,))).normal_())
    assert torch.equal(run_ranks(2, body)[0], untouched[0].to_local())


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.bfloat16, 900, 1000), (torch.half, 0, 4100)])
@pytest.mark.filterwarnings("ignore:.*is out of bounds")
def test_integers_stay_below_their_bound_in_dtypes_that_round_them(dtype, low, high):
    def body(rank):
        x = sw.zeros(100, 100, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)], dtype=dtype)
        for drawn in (x.random_(low, high), torch.randint_like(x, low, high)):
            numbers = drawn.full_tensor().double()
            assert low <= numbers.min() < numbers.max() < high

    run_ranks(2, body)


@pytest.mark.parametrize("seed", [None, 9])
def test_plain_draws_of_one_rank_leave_replicas_alike(seed):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = [Replicate()]

        def wait():
            sw.DTensor.from_local(torch.ones(1), mesh, [Partial()]).full_tensor()

        if seed is not None:
            if rank == 0:
                torch.default_generator.manual_seed(seed)
            wait()
        if rank == 0:
            drawn = sw.rand(4, device_mesh=mesh, placements=whole).to_local()
            torch.rand(3)
        wait()
        if rank == 1:
            drawn = sw.rand(4, device_mesh=mesh, placements=whole).to_local()
        return drawn

    first, second = run_ranks(2, body)
    assert torch.equal(first, second)


def test_distributions():
    """Mean and variance of 200,000 numbers each, to four deviations of the mean."""
    # draw, mean, variance
    cases = {
        "uniform": (lambda x: x.uniform_(1, 3), 2, 1 / 3),
        "normal": (lambda x: x.normal_(1, 2), 1, 4),
        "log_normal": (lambda x: x.log_normal_(0, 0.5).log_(), 0, 0.25),
        "exponential": (lambda x: x.exponential_(2), 0.5, 0.25),
        "geometric": (lambda x: x.geometric_(0.25), 4, 12),
        "cauchy": (lambda x: x.cauchy_(1, 2).sub_(1).abs_().le_(2), 0.5, 0.25),
        "bernoulli": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
        "random": (lambda x: x.random_(2, 8), 4.5, 35 / 12),
        "random of uint64": (lambda x: x.to(torch.uint64).random_(0, 2**40).div(2.0**40), 0.5, 1 / 12),
        "small rate": (lambda x: torch.poisson(x.fill_(0.7)), 0.7, 0.7),
        "large rate": (lambda x: torch.poisson(x.fill_(90)), 90, 90),
        "few trials": (lambda x: torch.binomial(x.fill_(9), x.clone().fill_(0.2)), 1.8, 1.44),
        "many trials": (lambda x: torch.binomial(x.fill_(300), x.clone().fill_(0.7)), 210, 63),
        "gamma below 1": (lambda x: torch._standard_gamma(x.fill_(0.4)), 0.4, 0.4),
        "gamma": (lambda x: torch._standard_gamma(x.fill_(3)), 3, 3),
        "multinomial": (lambda x: (x[:, :4].abs().add(1).multinomial(1)).double().repeat(1, 500), 1.5, 1.25 * 500),
    }

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        torch.manual_seed(11)
        result = {}
        for name, (draw, _, _) in cases.items():
            values = draw(sw.zeros(400, 500, device_mesh=mesh, placements=[Shard(0)])).full_tensor().double()
            result[name] = values.mean().item(), values.var().item()
        return result

    for name, (mean, variance) in run_ranks(2, body)[0].items():
        expected_mean, expected_variance = cases[name][1:]
        assert abs(mean - expected_mean) < 4 * (expected_variance / 200_000) ** 0.5, name
        if name != "multinomial":
            assert variance == pytest.approx(expected_variance, rel=0.04), name


def test_multinomial_follows_its_weights():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        torch.manual_seed(2)
        weights = sw.distribute_tensor(torch.tensor([1.0, 0.0, 3.0, 4.0, 0.0]), mesh, [Shard(0)])
        replaced = weights.multinomial(4000, replacement=True).full_tensor().bincount(minlength=5) / 4000
        assert torch.allclose(replaced, torch.tensor([0.125, 0, 0.375, 0.5, 0]), atol=0.04)
        rows = weights.expand(500, 5).multinomial(3).full_tensor()
        assert rows.sort(-1).values.unique(dim=0).tolist() == [[0, 2, 3]]
        assert (rows[:, 0].bincount(minlength=5) / 500)[3] == pytest.approx(0.5, abs=0.1)
        return True

    assert all(run_ranks(3, body))


# call, words of the error
WRONG = [
    (lambda x: x.uniform_(2, 1), "uniform_ expects to return a \\[from, to\\) range"),
    (lambda x: x.normal_(0, -1), "normal expects std >= 0.0"),
    (lambda x: x.exponential_(-1), "exponential_ expects lambda > 0.0"),
    (lambda x: x.geometric_(2), "geometric_ expects p to be in \\(0, 1\\)"),
    (lambda x: x.long().exponential_(), "dtype must be a floating point"),
    (lambda x: x.random_(3, 3), "random_ expects 'from' to be less than 'to'"),
    (lambda x: x.to(torch.uint16).random_(), "not implemented for 'UInt16'"),  # torch has none either
    (lambda x: x.to(torch.uint64).random_(3, None), "to - 1 is out of bounds"),
    (lambda x: torch.bernoulli(x + 2), "Use values in \\[0, 1\\]"),
    (lambda x: torch.normal(x, x - 1), "normal expects all elements of std >= 0.0"),
    (lambda x: torch.poisson(x - 1), "invalid Poisson rate"),
    (lambda x: (x - 1).multinomial(2), "probability tensor contains"),
    (lambda x: x.multinomial(9), "cannot sample n_sample > prob_dist.size\\(-1\\)"),
    (lambda x: torch.dropout(x, 2.0, True), "dropout probability has to be between 0 and 1"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_wrong_arguments_are_errors_on_every_rank(call, words):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.zeros(4, 4, device_mesh=mesh, placements=[Shard(0)])
        with pytest.raises(RuntimeError, match=words):
            call(x)
        return x.sum().item()  # the ranks still agree

    assert run_ranks(3, body) == [0.0] * 3


def test_modules_initialise_in_place():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        torch.manual_seed(3)
        weight = nn.Parameter(sw.empty(6, 4, device_mesh=mesh, placements=[Shard(0)]))
        nn.init.orthogonal_(weight)
        product = (weight.T @ weight).detach().full_tensor()
        nn.init.eye_(weight)
        return product, weight.detach().full_tensor(), weight.placements

    product, eye, placements = run_ranks(2, body)[0]
    torch.testing.assert_close(product, torch.eye(4), atol=1e-5, rtol=0)
    assert torch.equal(eye, torch.eye(6, 4)) and placements == (Shard(0),)


def test_draws_of_parameters_without_a_distribution_end():
    """As torch's: nan for nan and negative ones, inf for inf."""
    inf, nan = float("inf"), float("nan")

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        alpha = sw.distribute_tensor(torch.tensor([nan, inf, -1.0, -1e7, 2.0, 0.0]), mesh, [Shard(0)])
        drawn = torch._standard_gamma(alpha).full_tensor()
        assert drawn.isnan().tolist() == [True, False, True, True, False, False]
        assert drawn[1] == inf and drawn[4] > 0 and drawn[5] >= 0
        rates = sw.distribute_tensor(torch.tensor([inf, 3.0]), mesh, [Shard(0)])
        assert torch.poisson(rates).full_tensor()[0] == inf
        counts = torch.binomial(rates, torch.full_like(rates, 0.5)).full_tensor()
        assert counts[0] == inf and 0 <= counts[1] <= 3

    run_ranks(2, body, timeout=60)
