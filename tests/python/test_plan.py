"""Plans on paper: what a redistribution would send, in Python and from the command line."""

import pytest
import torch
from command_line import finished_command, is_error_in_a_line
from torchrun import forked_python

import shardwise as sw
from shardwise import EnumerableShard, Layout, Partial, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)


def test_a_layout_needs_no_process_group():
    layout = Layout((11, 5), (3,), [S0])
    assert (layout.shape, layout.mesh_shape, layout.ranks, layout.placements) == ((11, 5), (3,), [0, 1, 2], (S0,))
    assert [layout.boxes(rank) for rank in range(4)] == [[([0, 0], [4, 5])], [([4, 0], [4, 5])], [([8, 0], [3, 5])], []]
    assert repr(layout) == "Layout([11, 5] as [Shard(0)] on 3 ranks)"


def test_a_mesh_is_extents_or_ranks_or_a_device_mesh():
    extents = Layout((4, 4), (2, 2), [S0, S1])
    assert extents == Layout((4, 4), [[0, 1], [2, 3]], [S0, S1]) == Layout((4, 4), torch.arange(4).view(2, 2), [S0, S1])
    assert hash(extents) == hash(Layout([4, 4], (2, 2), (S0, Shard(-1))))
    assert extents != Layout((4, 4), [[0, 2], [1, 3]], [S0, S1])
    assert Layout((4,), [5, 3], [S0]).boxes(3) == [([2], [2])]

    def body(rank):
        assert Layout((4, 4), sw.init_device_mesh("cpu", (2, 2)), [S0, S1]) == extents

    run_ranks(4, body)


# what is done, the exception's type, its key words
ERRORS = {
    "an empty mesh": (lambda: Layout((4,), (0,), [S0]), ValueError, r"extents \(0\) has no ranks"),
    "a mesh of words": (lambda: Layout((4,), [0.5, 1.5], [S0]), TypeError, "holds no ranks"),
    "a rank twice": (lambda: Layout((4,), [1, 1], [S0]), ValueError, "1"),
    "too few placements": (lambda: Layout((4,), (2, 2), [S0]), ValueError, "placements"),
    "a dim that does not exist": (lambda: Layout((4,), (2,), [S1]), IndexError, r"Shard\(1\)"),
    "an unknown objective": (
        lambda: plan((4,), (2,), [S0], [R], objective="speed"),
        ValueError,
        r'\[plan_redistribution\] objective "speed" is not known.*Use "bytes" or "time"',
    ),
    "links of another mesh": (
        lambda: plan((4,), (2,), [S0], [R], links=[(1, 1), (1, 1)]),
        ValueError,
        "2 links are given for a mesh of 1 dims",
    ),
    "a link that cannot be": (lambda: plan((4,), (2,), [S0], [R], links=[(1, 0)]), ValueError, "rate above 0"),
    "a negative cap": (lambda: plan((4,), (2,), [S0], [R], memory_cap=-1), ValueError, "memory_cap is -1"),
    "other sizes": (
        lambda: sw.plan_redistribution(Layout((4,), (2,), [S0]), Layout((5,), (2,), [S0])),
        ValueError,
        "a move cannot change the sizes",
    ),
    "a plain tensor": (lambda: sw.plan_redistribution(torch.ones(3), [R]), TypeError, "where a DTensor is needed"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_mistake_is_named(name):
    act, error, words = ERRORS[name]
    with pytest.raises(error, match=words):
        act()


def plan(shape, mesh, source, target, **options):
    return sw.plan_redistribution(Layout(shape, mesh, source), target, **options)


# mesh, from, to, route, bytes received by all ranks for 4096x1024 float32
ROUTES = [
    ((4,), [S0], [S1], "all-to-all", 12_582_912),
    ((4,), [S0], [R], "all-gather", 3 * 16_777_216),
    ((4,), [P], [S0], "reduce-scatter", 3 * 16_777_216),
    ((4,), [P], [R], "all-reduce", 6 * 16_777_216),
    ((4,), [R], [S0], "slice", 0),
    ((4,), [S0], [S0], "none", 0),
    ((2, 2), [S0, S1], [S1, S0], "all-to-all", 8_388_608),
    ((2, 2), [S0, S0], [S1, S1], "all-to-all", 12_582_912),
    ((2, 2), [S0, R], [R, S0], "all-to-all", 16_777_216),
]


@pytest.mark.parametrize(("mesh", "source", "target", "route", "n_bytes"), ROUTES, ids=str)
def test_a_plan_has_its_route_and_is_at_the_bound(mesh, source, target, route, n_bytes):
    made = plan((4096, 1024), mesh, source, target)
    assert (made.route, made.bytes_received, made.bound, made.ratio) == (route, n_bytes, n_bytes, 1.0)
    assert made.n_rounds == (n_bytes > 0) and made.planning_us > 0
    shares = [made.traffic(rank) for rank in range(4)]
    assert sum(share.received for share in shares) == n_bytes
    assert max(share.received for share in shares) == made.most_received == shares[made.most_loaded_rank].received
    assert max(share.seconds for share in shares) == made.seconds
    assert [rank for rank, _ in made.simulate()] == [0, 1, 2, 3]
    assert made.traffic(4).received == 0


def test_a_plan_is_one_line_with_separated_thousands():
    made = plan((4096, 1024), (4,), [S0], [S1])
    parts = str(made).split(" | ")
    assert parts[:4] == [
        "all-to-all",
        "1 round",
        "received 12,582,912, bound 12,582,912, ratio 1.00",
        "most loaded rank 0: 3,145,728",
    ]
    assert parts[4].startswith("buffers ") and parts[5].startswith("planned in ") and parts[5].endswith(" us")
    assert repr(made) == "Plan([4096, 1024] as [Shard(0)] on 4 ranks -> [4096, 1024] as [Shard(1)] on 4 ranks)"
    assert str(made).startswith(repr(made.summary()))


def test_the_dtype_is_the_tensors_or_the_given_one_or_torchs_default():
    assert plan((8,), (2,), [S0], [R]).bytes_received == 32
    assert plan((8,), (2,), [S0], [R], dtype=torch.int8).bytes_received == 8

    def body(rank):
        x = sw.zeros(8, dtype=torch.float64, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[S0])
        assert sw.plan_redistribution(x, [R]).bytes_received == 64
        assert sw.plan_redistribution(x, x).route == "none"
        assert sw.plan_redistribution(x, Layout((8,), [1, 0], [S0])).bytes_received == 64
        return sw.plan_redistribution(Layout((8,), (2,), [R]), x).route

    assert run_ranks(2, body) == ["slice", "slice"]


def test_a_memory_cap_makes_more_and_smaller_rounds():
    free, capped = (plan((4096, 1024), (4,), [S0], [S1], memory_cap=cap) for cap in (0, 1 << 20))
    assert capped.buffer_bytes <= 1 << 20 < free.buffer_bytes
    assert capped.n_rounds > free.n_rounds == 1 and capped.bytes_received == free.bytes_received


def test_the_command_says_that_a_cap_is_not_kept():
    move = ["plan", "--shape", "40x10", "--mesh", "2", "--from", "S0", "--to", "S1"]
    above = "above the cap of 1 bytes: a round sends at least one index of the longest dim"
    assert above in finished_command(*move, "--memory-cap", "1").stdout
    assert (
        "above the cap" not in finished_command(*move, "--memory-cap", "1KiB").stdout + finished_command(*move).stdout
    )


def test_time_over_slow_links_is_no_more_than_that_of_the_fewest_bytes():
    links = [(50, 1), (2, 100)]
    fewest, fastest = (
        plan((4096, 1024), (4, 8), [S0, S0], [R, R], objective=objective, links=links)
        for objective in ("bytes", "time")
    )
    assert fastest.seconds <= fewest.seconds
    assert fastest.steps and fewest.steps == ["all-gather"]


def test_plans_lead_to_other_meshes_and_pieces():
    source = Layout((6, 4), (4,), [S0])
    assert sw.plan_redistribution(source, Layout((6, 4), [4, 5], [S0])).bytes_received == 96
    assert sw.plan_redistribution(source, Layout((6, 4), [3, 2, 1, 0], [S0])).route == "permute"
    pieces = [Piece((0, 0), (6, 1), 2), Piece((0, 1), (6, 3), 0)]
    made = sw.plan_redistribution(source, [EnumerableShard(pieces)])
    assert made.ratio == 1 and [rank for rank, share in made.simulate() if share.received] == [0, 2]


def test_a_sampled_summary_is_scaled_up():
    made = plan((4096, 1024), (16, 16), [S0, S1], [S1, S0])
    assert made.summary(n_samples=300).received == made.summary().received == made.bytes_received
    assert made.summary(n_samples=1).n_rounds <= 1


def test_traffic_on_a_mesh_of_65536_ranks():
    made = plan((1 << 16, 1 << 12), (256, 256), [S0, R], [R, S1])
    share = made.traffic(0)
    assert share.received == share.bound > 0


PLAN = ["--shape", "4097x1023", "--mesh", "2x2", "--from", "S0,S1", "--to", "S1,S0"]


def test_the_command_plan_prints_the_line():
    result = forked_python("-m", "shardwise", "plan", *PLAN)
    assert result.returncode == 0 and not result.stderr, result.stderr
    move, line = result.stdout.splitlines()
    assert move == (
        "[4097, 1023] as [Shard(0), Shard(1)] on 2x2 ranks -> [4097, 1023] as [Shard(1), Shard(0)] on 2x2 ranks, float32"
    )
    assert line.startswith("all-to-all | 1 round | received 8,382,460, bound 8,382,460, ratio 1.00 | most loaded rank ")


def test_the_command_simulate_prints_a_table():
    result = finished_command(
        "simulate", "--shape", "65536x4096", "--mesh", "64x64", "--from", "S0,R", "--to", "R,S1", "--dtype", "bfloat16"
    )
    assert result.returncode == 0 and not result.stderr, result.stderr
    lines = result.stdout.splitlines()
    assert lines[3].split() == ["rank", "received", "bound", "sent", "messages", "buffers", "time"]
    assert [line.split("  ")[0] for line in lines[4:]] == ["all 4,096 ranks", "most loaded", "median", "least loaded"]


MORE = {
    "all options": (
        ["--objective", "time", "--link", "20:10", "--link", "2:100", "--memory-cap", "1MiB", "--dtype", "int8"],
        "ratio",
    ),
    "another mesh": (["--to-mesh", "2x2", "--to-ranks", "4-6,9"], "2x2 ranks"),
    "permuted ranks": (["--ranks", "3,2,1,0"], "ratio 1.00"),
}


@pytest.mark.parametrize("name", MORE)
def test_the_command_takes(name):
    options, words = MORE[name]
    result = finished_command("plan", *PLAN, *options)
    assert result.returncode == 0 and words in result.stdout, result.stderr


SPELLED = ["RaggedShard((0,1),(2,3,0,5))", "Shard(0, sizes=[1, 3, 1, 3])", "Partial(max)"]  # as pictures print them


@pytest.mark.parametrize("text", ["S0[1,3,1,3]", "P", "Pmax", "Pavg", "R", "S-1", *SPELLED])
def test_placements_are_spelled(text):
    result = finished_command("plan", "--shape", "8x8", "--mesh", "4", "--from", text, "--to", "S0")
    assert result.returncode == 0, result.stderr


NO_PLACEMENTS = [
    *("S0[ ]", "S0[]", "S0[1 2]", "S0[1,,3]", "S0[1,3,]", "S0[99999999999999999999]", "S" + "9" * 30, "S-" + "9" * 30),
    *(
        "Shard(99999999999999999999)",
        "Shard(1+x)",
        "Shard(f())",
        "Shard(*[0])",
        "Shard(**{'dim': 0})",
        "Shard(0, dim=0)",
    ),
    *("Shard({[]: 0})", "Shard", "Placement(0)", "Layout((4,), (2,), [])", "\u0663"),
]

# the arguments that are given last, words of the error
MISTAKES = [
    (["--from", "S0,X"], 'argument --from: "X" is no placement'),
    (["--from", "Pmedian,R"], "median"),
    (["--from", "RaggedShard((0,), (1, -1)), R"], "hold a negative number"),
    (["--from", "RaggedShard(1), R"], '"RaggedShard(1)" is no placement'),
    *((["--from", f"{text}, R"], f'"{text}" is no placement. Write S0, ') for text in NO_PLACEMENTS),
    (["--from", f"Shard({'-' * 3000}1), R"], '..." is no placement. Write S0, '),  # more than Python's parser reads
    (["--from", f"Shard({'-' * 9000}1), R"], '..." is no placement. Write S0, '),
    (["--from", "S0\n[, R"], r'"S0\n[, R" is no placement'),
    (["--from", "S0"], "placements"),
    (["--from", "S7,R"], "Shard(7)"),
    (["--shape", "4x"], 'argument --shape: "4x" is no list of extents'),
    (["--mesh", "512x512"], "262,144 ranks. Give 1 to 65,536"),
    (["--dtype", "float33"], 'no dtype "float33"'),
    (["--link", "20"], '"20" is no link'),
    (["--link", "-1:1", "--link", "1:1"], "a link of -1 us and 1 GB/s"),
    (["--link", "-"], '"-" is no link'),
    (["--link", "-x"], "argument --link: it has no value. Give one; one that begins with a dash as in --link=-1."),
    (["--shape", "9" * 5000], '..." has an extent of more than 19 digits. Give smaller extents.'),
    (["--mesh", "x".join(["9" * 19] * 300)], "is a mesh of more than 9,223,372,036,854,775,807 ranks"),
    (["--ranks", "-1,0"], 'argument --ranks: "-1,0" is no list of ranks. Write them as in 0,2,1,3 or 4-7.'),
    (["--ranks", "9" * 5000], '..." is no list of ranks'),
    (["--link", "20:10"], "1 links are given for a mesh of 2 dims"),
    (["--memory-cap", "1XiB"], '"1XiB" is no number of bytes'),
    (["--memory-cap", "9" * 400], "Give 1 to 4611686018427387903"),
    (["--shape", "0x99999999999999999999"], "Give smaller extents"),
    (["--shape", "1125899906842624x128"], "on 4 ranks may be more than 1,152,921,504,606,846,976 bytes"),
    (["--to-mesh", "256x256", "--shape", "4194304x4194304"], "on 65,536 ranks may be more"),
    (["--link", "inf:10", "--link", "20:10"], "a link of inf us and 10 GB/s"),
    (["--ranks", "0,1"], "2 ranks do not fill a mesh of 4"),
    (["--ranks", "0,1,1,2"], "1"),
    (["--to-ranks", "0,1,2,3"], "--to-ranks needs --to-mesh"),
    (["--objective", "speed"], "invalid choice"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=lambda each: str(each)[:60])
def test_a_mistake_on_the_command_line_is_an_error_of_usage(arguments, words):
    result = finished_command("plan", *PLAN, *arguments)
    assert is_error_in_a_line(result, "plan") and words in result.stderr, result.stderr
    assert "error: argument " not in result.stderr or "See python -m shardwise plan --help." in result.stderr
