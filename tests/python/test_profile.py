"""shardwise.profile() and step_report(): what operators and communications took, on one rank and on all."""

import gzip
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Thread

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.debug import MergedProfile
from shardwise.debug.chrome_trace import trace_events
from shardwise.debug.places import local_tensors
from shardwise.debug.profile_tables import without_inner
from shardwise.debug.spans import CommunicationSpan, RankProfile
from shardwise.debug.text_tables import table_text
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks


def line_here(words):
    """The number of this file's line that holds these words."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, start=1) if words in line and "line_here" not in line)


def matrices(n_ranks):
    mesh = sw.init_device_mesh("cpu", (n_ranks,))
    a = sw.ones(6, 4, device_mesh=mesh, placements=[Shard(1)])
    b = sw.ones(4, 5, device_mesh=mesh, placements=[Shard(0)])
    return a, b


def test_operators_and_communications_are_told_with_layouts_bytes_times_and_lines():
    def body(rank):
        a, b = matrices(3)
        with sw.profile() as recorded:
            before = time.time_ns()
            product = torch.mm(a, b)
            rows = product.redistribute(placements=[Shard(0)])  # by rows
            total = rows.sum()
            total.item()  # the number
            after = time.time_ns()
        return recorded, before, after

    for recorded, before, after in run_ranks(3, body):
        mm, *_ = recorded.operators
        assert (mm.op, mm.given, mm.used, mm.results) == (
            "aten::mm",
            ["[Shard(1)]", "[Shard(0)]"],
            ["[Shard(1)]", "[Shard(0)]"],
            ["[Partial(sum)]"],
        )
        assert mm.rule.startswith("mk,kn->mn") and mm.n_collectives == 0
        # Two clocks, of which one is the processor's.
        assert before - 1_000_000 < mm.begin_ns < mm.end_ns < after + 1_000_000
        asked, unasked = [each for each in recorded.communications if not each.collective.startswith("compare")]
        assert (asked.collective, asked.op, asked.is_asked_for) == ("reduce_scatter", "redistribute", True)
        assert asked.layouts == "Float [6, 5] as [Partial(sum)] on (3) -> Float [6, 5] as [Shard(0)] on (3)"
        assert asked.bytes_received == 2 * 2 * 5 * 4 and asked.ranks == (0, 1, 2)
        assert re.search(rf"test_profile\.py:{line_here('# by rows')} in ", asked.source), asked.source
        assert unasked.op == "aten::_local_scalar_dense" and not unasked.is_asked_for
        assert re.search(rf"test_profile\.py:{line_here('# the number')} in ", unasked.source), unasked.source
        for each in (asked, unasked):
            assert before - 1_000_000 < each.begin_ns <= each.end_ns < after + 1_000_000
            assert 0 <= each.waited_ns <= each.end_ns - each.begin_ns + 1000
        text = recorded.unasked()
        assert "communication you did not ask for" in text and "aten::_local_scalar_dense" in text
        assert f"test_profile.py:{line_here('# the number')} in body" in text and "redistribute" not in text
        assert "aten::mm" in str(recorded) and "reduce_scatter" in str(recorded)


def test_what_an_operator_moves_on_its_own_is_its_own_even_where_a_policy_let_it_pass():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        a = sw.ones(4, 4, device_mesh=mesh, placements=[Shard(0)])
        b = sw.ones(4, 4, device_mesh=mesh, placements=[Shard(1)])
        with sw.profile() as recorded:
            a + b
        (sent,) = recorded.communications
        (add,) = recorded.operators
        assert sent.op == "aten::add.Tensor" and not sent.is_asked_for and "->" in sent.layouts
        assert add.n_collectives == 1 and add.bytes_received == sent.bytes_received > 0 and add.used != add.given
        assert add.begin_ns <= sent.begin_ns and sent.end_ns <= add.end_ns

    run_ranks(2, body)


def test_blocks_nest_and_nothing_outside_is_seen():
    def body(rank):
        a, b = matrices(2)
        torch.mm(a, b)
        with sw.profile() as outer:
            torch.mm(a, b)
            with sw.profile() as inner:
                a * 2
            a.sum().item()
        torch.mm(a, b)
        assert [each.op for each in inner.operators] == ["aten::mul.Tensor"]
        assert [each.op for each in outer.operators][:2] == ["aten::mm", "aten::mul.Tensor"]
        assert not inner.communications and len(outer.communications) == 1
        assert inner.unasked() == "no communication that you did not ask for\n" and inner.unasked() in str(inner)
        with outer:  # anew
            a * 2
        assert [each.op for each in outer.operators] == ["aten::mul.Tensor"]

    run_ranks(2, body)


def test_kernels_in_place_of_rules_and_explain_within_are_told_once():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.ones(8, 3, device_mesh=mesh, placements=[Shard(0)])
        ids = sw.distribute_tensor(torch.tensor([0, 7, 3]), mesh, [Replicate()])
        with sw.profile() as recorded:
            torch.nn.functional.embedding(ids, table).full_tensor()
            records = sw.explain(lambda: table * 3)
        assert [each.op for each in records] == ["aten::mul.Tensor"]
        ops = [each.op for each in recorded.operators]
        assert ops.count("aten::mul.Tensor") == 1 and any("embedding" in op for op in ops), ops

    run_ranks(2, body)


def test_an_operator_is_told_once_and_the_table_counts_nothing_twice():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        x = sw.ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
        w = sw.ones(4, 8, device_mesh=mesh, placements=[Shard(1)])
        with sw.profile() as recorded:
            x @ w
            torch.nn.functional.layer_norm(x, (4,))
        operators = recorded.operators
        assert [each.op for each in operators] == ["shardwise::matmul", "aten::matmul", "aten::native_layer_norm"]
        around = operators[1]
        assert around.bytes_received == sum(each.bytes_received for each in recorded.communications) > 0
        assert operators[2].given  # the call that had a rule
        own = without_inner(operators)
        assert own[0] == operators[0]
        assert (own[1].n_collectives, own[1].bytes_received) == (0, 0)
        assert own[1].microseconds + own[0].microseconds == pytest.approx(around.microseconds)

    run_ranks(4, body)


class Sleepy(torch.autograd.Function):
    """What takes 50 ms backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.05)
        return grad


class Sleep(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return Sleepy.apply(x * self.weight)


class Calls(nn.Module):
    """Its own backward takes time between those of two layers, of which one is called again."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Sleep(), Sleep()

    def forward(self, x):
        return self.first(self.second(Sleepy.apply(self.first(x))))


@pytest.mark.parametrize(
    ("make", "slept"),
    [
        (lambda: nn.Sequential(Sleep(), Sleep()), {"0": 1, "1": 1}),
        (lambda: nn.Sequential(Sleep(), nn.ReLU(inplace=True), Sleep(), nn.Identity()), {"0": 1, "2": 1}),
        (lambda: nn.Sequential(nn.Sequential(Sleep(), Sleep()), nn.Identity()), {"0.0": 1, "0.1": 1}),
        (Calls, {"first": 2, "second": 1, "": 1}),
    ],
)
def test_a_step_report_gives_each_layer_the_time_of_its_own_backward(make, slept):
    """Where the output of a layer is the input of the next one, or the output of the model, too."""

    def body(rank):
        model = make()

        def step():
            model(torch.ones(4)).sum().backward()
            time.sleep(0.05)  # as an optimizer would: no layer's

        report = sw.step_report(model, step)
        took = {each.path.partition(".")[2]: each.backward_seconds for each in report.ranks[0].layers}
        assert {path: int(seconds / 0.05) for path, seconds in took.items() if seconds >= 0.05} == slept

    run_ranks(1, body)


def test_a_rank_or_a_model_that_there_is_not_is_refused():
    def body(rank):
        with sw.profile() as recorded:
            pass
        merged = recorded.merge()
        with pytest.raises(TypeError, match=r"\[step_report\] model is function: .* Give the torch\.nn\.Module"):
            sw.step_report(lambda: None, lambda: None)
        if rank == 0:
            with pytest.raises(
                IsADirectoryError, match=r"\[profile\] the trace '/proc' cannot be written: .* Give a path"
            ):
                merged.save_trace("/proc")
            for given in (None, 3):
                with pytest.raises(TypeError, match=r"\[profile\] path is (NoneType|int): .* Give a name"):
                    merged.save_trace(given)
            with pytest.raises(OSError, match=r"\[profile\] the trace 'a\\x00b' cannot be written: Invalid"):
                merged.save_trace("a\0b")
            for wrong in ("x", None, 1.5, True):
                with pytest.raises(
                    TypeError, match=rf"\[profile\] rank is {wrong!r}, which is no whole number\. Give one"
                ):
                    merged.tables(rank=wrong)
                for table in (merged.tables, recorded.tables, recorded.unasked):
                    with pytest.raises(TypeError, match=rf"\[profile\] limit is {wrong!r}, which is no whole number"):
                        table(limit=wrong)
            with pytest.raises(ValueError, match=r"\[profile\] limit is -1: .* Give 0 or more"):
                merged.tables(limit=-1)
        for missing in (-1, 2) if rank == 0 else ():
            with pytest.raises(
                IndexError, match=rf"\[profile\] rank {missing} has no profile.* Give a rank from 0 to 1"
            ):
                merged.tables(rank=missing)

    run_ranks(2, body)


def test_a_trace_that_cannot_be_written_is_an_error_on_all_ranks(tmp_path):
    def body(rank):
        with sw.profile() as recorded:
            pass
        with pytest.raises(
            FileNotFoundError, match=r"\[profile\] the trace '.*none/step.json' cannot be written: No such"
        ):
            recorded.save_trace(tmp_path / "none" / "step.json")
        for given in (None, 3, [tmp_path]):
            with pytest.raises(TypeError, match=r"\[profile\] path is .*: a trace is written to a file\. Give a name"):
                recorded.save_trace(given)
        with pytest.raises(OSError, match=r"\[profile\] the trace '.*a\\x00b' cannot be written: Invalid argument"):
            recorded.save_trace(f"{tmp_path}/a\0b")
        recorded.save_trace(os.fsencode(tmp_path / "step.json"))
        assert (tmp_path / "step.json").stat().st_size > 0
        # Only rank 0 needs a path.
        recorded.save_trace(tmp_path / "own.json" if rank == 0 else None)
        assert (tmp_path / "own.json").stat().st_size > 0
        with pytest.raises(
            FileNotFoundError,
            match=rf"trace {'.*none/own.json' if rank == 0 else 'of rank 0'}.* cannot be written: No such",
        ):
            recorded.save_trace(tmp_path / "none" / "own.json" if rank == 0 else None)
        with pytest.raises(TypeError, match=rf"\[profile\] path is {'NoneType' if rank == 0 else 'none, on rank 0'}:"):
            recorded.save_trace(None if rank == 0 else tmp_path / "own.json")

    run_ranks(3, body)


def test_a_process_alone_is_one_rank(tmp_path):
    with sw.profile() as recorded:
        torch.ones(3).sum()
    (own,) = recorded.merge().ranks
    assert own.rank == 0
    recorded.save_trace(tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"][0]["pid"] == 0
    with pytest.raises(IsADirectoryError):
        recorded.save_trace(tmp_path)
    report = sw.step_report(torch.nn.Linear(3, 2), torch.ones(4, 3))
    assert [each.rank for each in report.ranks] == [0] and report.ranks[0].layers[-1].parameter_bytes == 32


def late_profile(rank, n_ranks=3, late=1):
    a, _ = matrices(n_ranks)
    a.sum().item()
    with sw.profile() as recorded:
        if rank == late:
            time.sleep(0.2)
        a.sum().item()
    return recorded


def test_merged_profiles_say_who_waited_for_whom():
    merged, *others = run_ranks(3, lambda rank: late_profile(rank).merge())
    assert others == [None, None] and isinstance(merged, MergedProfile)
    for profile in merged.ranks:
        (sent,) = profile.communications
        assert profile.clock_ns == 0
        if profile.rank == 1:
            assert sent.last_rank is None and sent.late_ns == 0
        else:
            assert sent.last_rank == 1 and 0.1e9 < sent.late_ns <= sent.waited_ns
    text = merged.tables(rank=2)
    assert re.search(r"all_reduce .* rank 1", text.replace("\n", " "))
    assert "communications of rank 2" in text


def test_a_trace_has_a_track_per_rank_and_arrows_from_the_rank_that_came_last(tmp_path):
    def body(rank):
        recorded = late_profile(rank)
        merged = recorded.merge()
        if merged:
            merged.save_trace(tmp_path / "trace.json.gz")
            merged.save_trace(tmp_path / "trace.json")
        recorded.save_trace(tmp_path / "again.json")

    run_ranks(3, body)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == trace
    events = trace["traceEvents"]
    assert len(json.loads((tmp_path / "again.json").read_text())["traceEvents"]) == len(events)
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert tracks == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices) and min(event["ts"] for event in slices) == 0
    sent = {event["pid"]: event for event in slices if event["name"] == "all_reduce"}
    assert sent[0]["args"]["waited for"] == "rank 1" and "waited for" not in sent[1]["args"]
    starts = [event for event in events if event["ph"] == "s"]
    ends = [event for event in events if event["ph"] == "f"]
    assert [event["pid"] for event in starts] == [1, 1] and sorted(event["pid"] for event in ends) == [0, 2]
    assert {event["id"] for event in starts} == {event["id"] for event in ends} and len(
        {event["id"] for event in ends}
    ) == 2
    for start, end in zip(starts, ends, strict=True):
        assert start["ts"] == sent[1]["ts"] <= end["ts"] <= sent[end["pid"]]["ts"] + sent[end["pid"]]["dur"] + 1
        assert end["bp"] == "e" and end["tid"] == sent[end["pid"]]["tid"]
    operators = [event for event in slices if event["tid"] == 0 and event["pid"] == 0]
    assert any(event["args"]["operands"] == "[Shard(1)]" for event in operators)


def span(begin_ms, end_ms, waited_ms, n_bytes=8, ranks=(0, 1, 2), call=1):
    """A communication, between these moments, whose last part is its wait."""
    return CommunicationSpan(
        "all_gather",
        "",
        "",
        "",
        "",
        True,
        ranks,
        call,
        n_bytes,
        n_bytes,
        *(ms * 1_000_000 for ms in (begin_ms, end_ms, waited_ms)),
        False,
    )


def test_only_ranks_that_waited_for_the_last_one_are_said_to():
    # of ranks 0, 1 and 2; for whom each waited, and for how many ms
    cases = [
        # Rank 0 waits all the time, rank 1 from its fifth ms on.
        ([span(0, 11, 11), span(0, 11, 6), span(10, 11, 1)], [(2, 10), (2, 5), (None, 0)]),
        # Rank 0 computes until all have come, and rank 1 only sends: it ends before.
        ([span(0, 15, 1), span(0, 1, 1), span(10, 15, 5)], [(None, 0), (None, 0), (None, 0)]),
        # Rank 2 has no part: rank 1 comes last.
        ([span(0, 5, 5), span(4, 5, 1), span(10, 10, 0, n_bytes=0)], [(1, 4), (None, 0), (None, 0)]),
        # Nobody sends bytes that count: all take part.
        ([span(0, 5, 5, 0), span(4, 5, 1, 0), span(4, 5, 1, 0)], [(1, 4), (None, 0), (None, 0)]),
        # One alone, and a call from which members may stay away.
        ([span(0, 5, 5), span(4, 4, 0, 0), span(4, 4, 0, 0)], [(None, 0)] * 3),
        ([span(0, 5, 5, call=0), span(4, 5, 1, call=0), span(4, 5, 1, call=0)], [(None, 0)] * 3),
    ]
    for spans, waited in cases:
        merged = MergedProfile.of([RankProfile(rank, [], [each]) for rank, each in enumerate(spans)])
        told = [each for profile in merged.ranks for each in profile.communications]
        assert [(each.last_rank, each.late_ns / 1e6) for each in told] == waited
        arrows = {event["pid"]: event["ts"] for event in trace_events(merged.ranks) if event["ph"] == "f"}
        assert list(arrows) == [rank for rank, (last, _) in enumerate(waited) if last is not None]
        for rank, moment in arrows.items():
            assert moment == (told[rank].end_ns - min(each.begin_ns for each in told)) / 1000


def test_a_block_that_is_still_open_is_that_of_its_rank(tmp_path):
    def body(rank):
        recorded = sw.profile()
        with recorded:
            sw.init_device_mesh("cpu", (2,))
            merged = recorded.merge()
            recorded.save_trace(tmp_path / "step.json")
        return merged

    merged, _ = run_ranks(2, body)
    assert [profile.rank for profile in merged.ranks] == [0, 1]
    assert {event["pid"] for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"]} == {0, 1}


def test_communications_that_overlap_lie_on_threads_of_their_own():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(64, 4, device_mesh=mesh, placements=[Shard(0)])
        with sw.profile() as recorded:
            moved = [x.redistribute(placements=[Replicate()], async_op=True) for _ in range(3)]
            for each in moved:
                each.to_local().sum()
        return recorded.merge()

    merged = run_ranks(2, body)[0]
    by_lane = {}
    for event in trace_events(merged.ranks):
        if event["ph"] == "X" and event["tid"] > 0:
            by_lane.setdefault((event["pid"], event["tid"]), []).append(event)
    assert max(tid for _, tid in by_lane) == 3
    for events in by_lane.values():
        events.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(events))


def test_torch_profiler_shows_operators_moves_and_communications():
    def of_rank_0(rank):
        a, b = matrices(2)
        if rank == 0:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                torch.mm(a, b).redistribute(placements=[Replicate()])
            return {event.name for event in profiler.events()}
        torch.mm(a, b).redistribute(placements=[Replicate()])
        return None

    names = run_ranks(2, of_rank_0)[0]
    assert "aten::mm" in names
    assert "shardwise::all_reduce for redistribute" in names, sorted(names)
    assert any(name.startswith("shardwise::move Float [6, 5] as [Partial(sum)]") for name in names), sorted(names)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def parallel_mlp(n_ranks):
    mesh = sw.init_device_mesh("cpu", (n_ranks,))
    torch.manual_seed(0)
    return parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


@pytest.mark.parametrize("as_batch", [True, False])
def test_a_step_report_tells_layers_times_and_memory_of_all_ranks(as_batch):
    def body(rank):
        model = parallel_mlp(2)
        x = torch.ones(4, 8)

        def step():
            if rank == 1:
                time.sleep(0.2)
            model(x).sum().backward()

        begin = time.perf_counter()
        report = sw.step_report(model, x if as_batch else step)
        return report, time.perf_counter() - begin

    (report, passed), (other, _) = run_ranks(2, body)
    assert [each.rank for each in report.ranks] == [0, 1] and [each.rank for each in other.ranks] == [1]
    own = report.ranks[0]
    layers = {layer.path: layer for layer in own.layers}
    assert list(layers) == ["Global", "MLP", "MLP.up", "MLP.down"]
    assert 0 < own.seconds < passed and 0 < own.waited_seconds <= own.seconds
    down = layers["MLP.down"]
    assert down.n_collectives == 1 and down.bytes_received > 0 and down.waited_seconds > 0
    assert down.forward_seconds >= down.waited_seconds * 0.9 and down.backward_seconds > 0
    assert layers["MLP.up"].parameter_bytes == (8 * 16 + 16) * 4 // 2 == layers["MLP.up"].gradient_bytes
    assert down.parameter_bytes == (16 * 8 // 2 + 8) * 4  # the bias is replicated
    assert layers["MLP"].buffer_bytes == 12
    assert own.memory_bytes < own.peak_bytes
    if not as_batch:
        assert own.waited_seconds > 0.1  # for rank 1, which slept
    text = str(report)
    assert (
        "layers of rank 0" in text
        and re.search(r"^ +down ", text, re.MULTILINE)
        and re.search(r"^1 ", text, re.MULTILINE)
    )


def test_a_step_report_counts_sparse_gradients_on_ranks_with_and_without_pieces():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [0, 1])
        model = nn.Embedding(6, 4, sparse=True)
        model.weight = nn.Parameter(sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]))
        ids = sw.distribute_tensor(torch.tensor([0, 0, 5, 1]), mesh, [Replicate()])
        layer = sw.step_report(model, ids).ranks[0].layers[-1]
        if rank == 2:
            return layer.gradient_bytes, 0
        piece = model.weight.grad.to_local()
        assert piece.is_sparse and piece._nnz() > 0
        return layer.gradient_bytes, piece._values().nbytes + piece._indices().nbytes

    for told, held in run_ranks(3, body):
        assert told == held


def test_a_step_report_counts_the_part_of_torchs_tensors_that_a_rank_has():
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, init_device_mesh
    from torch.distributed.tensor import Shard as TorchsShard

    assert not dist.is_initialized()
    dist.init_process_group("fake", rank=1, world_size=2)
    try:
        whole = DTensor.from_local(torch.ones(3, 4), init_device_mesh("cpu", (2,)), [TorchsShard(0)], run_check=False)
        assert whole.shape == (6, 4)
        for each in (whole, nn.Parameter(whole)):
            assert [part.shape for part in local_tensors(each)] == [(3, 4)]
    finally:
        dist.destroy_process_group()


class Attentive(nn.Module):
    """Uses parameters of modules whose forward it does not call."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.scales = nn.ParameterList([torch.ones(8), torch.ones(8)])
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.attention(x, x, x)[0] * self.scales[0] * self.scales[1])


def test_a_step_report_counts_the_memory_of_modules_that_do_not_run():
    def body(rank):
        model = Attentive()
        report = sw.step_report(model, torch.ones(4, 8))
        held = [*model.parameters(), *(each.grad for each in model.parameters()), *model.buffers()]
        return report.ranks[0], sum(tensor.nbytes for tensor in held)

    report, n_bytes = run_ranks(1, body)[0]
    assert report.memory_bytes == n_bytes
    assert [(layer.path, layer.depth) for layer in report.layers] == [
        ("Global", 0),
        ("Attentive", 1),
        ("Attentive.attention", 2),
        ("Attentive.attention.out_proj", 3),
        ("Attentive.norm", 2),
        ("Attentive.scales", 2),
    ]
    assert report.layers[3].seconds == 0 and report.layers[3].parameter_bytes == (8 * 8 + 8) * 4


def compiled_model():
    """The first layer is compiled around a module, the second one in place."""
    model = nn.Sequential(torch.compile(nn.Linear(3, 2), backend="eager"), nn.Linear(2, 2), nn.Tanh())
    model[1].compile(backend="eager")
    return model


def test_a_step_report_does_not_have_a_model_compiled_anew():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        model = sw.distribute_module(compiled_model(), mesh)
        x = sw.ones(4, 3, device_mesh=mesh)
        hooks = hooks_of(model)
        reports = [sw.step_report(model, x) for _ in range(2)]
        assert hooks_of(model) == hooks
        return reports

    def hooks_of(model):
        return [(len(module._forward_pre_hooks), len(module._forward_hooks)) for module in model.modules()]

    ((first, second),) = run_ranks(1, body)
    assert first.ranks[0].n_compiled > 0 and "torch.compile was at work during the step" in str(first)
    assert second.ranks[0].n_compiled == 0 and "torch.compile" not in str(second)
    layers = {layer.path: layer for layer in second.ranks[0].layers}
    assert {path: layer.seconds > 0 for path, layer in layers.items()} == {
        "Global": True,
        "Sequential": True,
        "Sequential.0": True,
        "Sequential.0._orig_mod": False,  # holds what it has, and is not seen
        "Sequential.1": False,
        "Sequential.2": True,
    }


def test_tables_show_names_as_they_are():
    names = ["[cls]", "[/a]", "a:100:", "x" * 100]
    text = table_text("layers [bold]", ["layer", "[ms]"], [(name, "1" * 30) for name in names], 1)
    assert text.splitlines()[0] == "layers [bold]" and "[ms]" in text.splitlines()[1]
    assert [line.split() for line in text.splitlines()[2:]] == [[name, "1" * 30] for name in names]
    assert {len(line) for line in text.splitlines()[1:]} == {132}
    text = table_text("", ["layer", "ms"], [(name, "1" * 30) for name in names], 1, total=("all", "2"))
    assert all(f"{name} " in text for name in names) and text.count("1" * 30) == 4


def test_wide_tables_fold_their_longest_texts():
    path, words = "model.layers." * 12 + "weight", "some words " * 12
    text = table_text("", ["layer", "what", "ms"], [(path, words, "1.5"), ("short", "one word", "20")], 2)
    _, *lines, short = text.splitlines()
    assert max(map(len, lines)) <= 160 and len(lines) == 3 and short.split() == ["short", "one", "word", "20"]
    assert "".join(line.split()[0] for line in lines) == path  # a name is cut where the column ends
    assert all(word in ("some", "words", "1.5") for line in lines for word in line.split()[1:])  # words stay whole


def test_a_batch_with_nothing_to_differentiate_is_refused():
    def body(rank):
        with pytest.raises(TypeError, match=r"\[step_report\] no output"):
            sw.step_report(nn.Identity(), torch.ones(2))

    run_ranks(1, body)


def test_a_profile_is_closed_by_the_thread_that_opened_it():
    def body(rank):
        x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        recorded = sw.profile()
        recorded.__enter__()
        with ThreadPoolExecutor() as pool:
            closing = pool.submit(recorded.__exit__, None, None, None)
        with pytest.raises(ValueError, match="Close it on the thread that opened it"):
            closing.result()
        x + 1
        recorded.__exit__(None, None, None)
        x + 2
        assert [each.op for each in recorded.operators] == ["aten::add.Tensor"]

    run_ranks(2, body)


@pytest.mark.parametrize("wants", [{"operators": True, "details": True}, {"plain_collectives": True}])
def test_what_another_thread_drops_while_it_is_open_stays_for_its_thread(wants):
    def body(rank):
        x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        kept = [sw._C.EventReader("profile", **wants)]
        kept[0].open()
        dropping = Thread(target=kept.clear)
        dropping.start()
        dropping.join()
        for _ in range(100):
            x = x + x.sum() / 8
        return x.full_tensor().sum().item()

    assert len(set(run_ranks(2, body))) == 1
