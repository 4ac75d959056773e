"""What a DistributedEmbedding tells of itself: explain(), memory_report(), hot_rows()."""

from collections import Counter

import pytest
import torch

import shardwise as sw
from shardwise.distributed_embedding.report import TableCounts
from shardwise.testing import run_ranks

SHAPES = {"a": (40, 8), "b": (6, 4), "c": (30, 8)}


def layer_of(**options):
    configs = [sw.TableConfig(name, *shape, ids_per_sample=2) for name, shape in SHAPES.items()]
    return sw.DistributedEmbedding(configs, data_parallel_threshold=24, row_slice_threshold=300, **options)


def ids_of(rank, n_samples=5):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randint(rows, (n_samples, 2), generator=generator) for rows, _ in SHAPES.values()]


def test_explain_tells_what_the_plan_expected_and_what_came():
    def body(rank):
        layer = layer_of(strategy="basic")
        layer(ids_of(rank))
        lines = layer.explain(reasons=True).splitlines()
        a, b, c = (line.split() for line in lines[2:5])
        assert a[:8] == ["a", "40", "8", "sum", "row-parallel", "0-2", "1.2", "KiB"]
        assert b[:6] == ["b", "6", "4", "sum", "replicated", "all"] and b[-5:] == ["10", "10", "0", "0", "B"]
        assert c[4:6] == ["table-parallel", "0-2"]
        distinct = [len(ids.unique()) for ids in ids_of(rank)]
        assert a[-5:-2] == ["10", "10", str(distinct[0])]
        assert lines[6].split()[:2] == ["3", "tables"]
        assert any(line.startswith("b: ") for line in lines[7:])

    run_ranks(3, body)


def test_the_memory_report_counts_files_by_themselves(tmp_path):
    def body(rank):
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("stored", 100, 4), sw.TableConfig("here", 30, 4)],
            row_slice_threshold=300,
            storage={"stored": sw.FileStorage(tmp_path, cache_rows=7)},
        )
        optimizer = sw.optim.FusedAdam(layer.parameters())
        ids = torch.arange(2) + 50 * rank
        sum(vectors.sum() for vectors in layer([ids, ids % 30])).backward()
        report = layer.memory_report(optimizer)
        hot = 7 * 4 * 4
        here = 30 * 4 * 4
        assert [each.files for each in report.ranks] == [3 * 50 * 4 * 4] * 2  # values and two moments
        assert sum(each.sharded for each in report.ranks) == 2 * hot + here
        assert sum(each.optimizer for each in report.ranks) == 2 * 2 * hot + 2 * here
        assert report.total == sum(r.sharded + r.optimizer + r.buffers for r in report.ranks)
        assert str(report).splitlines()[0].split()[-2:] == ["in", "files"]
        dense = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5)
        optimizer.close()
        sum(vectors.sum() for vectors in layer([ids, ids % 30])).backward()
        dense.step()
        of_dense = layer.memory_report(dense)
        assert [each.files for each in of_dense.ranks] == [50 * 4 * 4] * 2, "its state is in memory"

    run_ranks(2, body)


def test_the_memory_report_adds_up():
    def body(rank):
        layer = layer_of()
        fused = sw.optim.FusedAdagrad([layer.tables["a"]], lr=0.1)
        dense = torch.optim.Adam([layer.tables["b"], layer.tables["c"]])
        sum(vectors.sum() for vectors in layer(ids_of(rank))).backward()
        dense.step()
        report = layer.memory_report(fused, dense)
        assert len(report.ranks) == 3 and report.total == sum(each.total for each in report.ranks)
        assert [each.replicated for each in report.ranks] == [6 * 4 * 4] * 3
        assert sum(each.sharded for each in report.ranks) == (40 + 30) * 8 * 4
        steps = 2 * 3 * 4  # Adam's counters, on every rank
        assert sum(each.optimizer for each in report.ranks) - steps == 40 * 8 * 4 + 2 * (30 * 8 + 3 * 6 * 4) * 4
        assert sum(each.gradients for each in report.ranks) == (30 * 8 + 3 * 6 * 4) * 4
        assert all(each.buffers > 0 for each in report.ranks)
        own = sum(values.nbytes for table in (0, 2) for values, _, _ in layer.pieces(table))
        assert report.ranks[rank].sharded == own
        text = str(report).splitlines()
        assert text[0].split()[:3] == ["rank", "replicated", "sharded"] and text[-1].startswith("imbalance ")
        assert report.imbalance >= 1 and "in files" not in text[0]

    run_ranks(3, body)


@pytest.mark.parametrize("dp_input", [True, False])
def test_hot_rows_are_those_of_all_ranks(dp_input):
    n_samples = 6

    def body(rank):
        configs = [sw.TableConfig(name, *shape) for name, shape in SHAPES.items()]
        layer = sw.DistributedEmbedding(
            configs, strategy="basic", column_slice_threshold=100, data_parallel_threshold=24, dp_input=dp_input
        )
        with pytest.raises(RuntimeError, match="Call count_rows"):
            layer.hot_rows("a")
        batches = [ids_of(r, n_samples) for r in range(3)]
        if dp_input:
            inputs = batches[rank]
        else:  # of all samples where this rank has columns, its own for replicated tables
            inputs = [
                torch.cat(ids) if layer.pieces(t) and t != 1 else None
                for t, ids in enumerate(zip(*batches, strict=True))
            ]
            inputs[1] = batches[rank][1]
        layer(inputs)
        layer.count_rows()
        for _ in range(2):
            layer(inputs)
        for table, name in enumerate(SHAPES):
            counts = Counter(torch.cat([batch[table].view(-1) for batch in batches]).tolist())
            found = layer.hot_rows(name, 4)
            assert [row.n_ids for row in found] == sorted((2 * n for n in counts.values()), reverse=True)[:4]
            assert all(
                row.n_ids == 2 * counts[row.row] and row.share == row.n_ids / (2 * 3 * n_samples * 2) for row in found
            )
        layer.count_rows(None)
        with pytest.raises(RuntimeError, match="no rows are counted"):
            layer.hot_rows(0)
        with pytest.raises(ValueError, match="capacity is 0"):
            layer.count_rows(0)
        with pytest.raises(ValueError, match="there is no table 'z'"):
            layer.pieces("z")

    run_ranks(3, body)


def test_counts_of_more_rows_than_fit_are_little_too_low():
    torch.manual_seed(0)
    capacity = 50
    own = TableCounts(capacity, torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
    seen = Counter()
    for _ in range(40):
        ids = (torch.rand(500).pow(-0.7) * 3).long().clamp_max(5000)
        own.add(ids)
        seen.update(ids.tolist())
    assert len(own.rows) <= capacity and own.n_ids == sum(seen.values())
    counts = dict(zip(own.rows.tolist(), own.counts.tolist(), strict=True))
    for row, n in seen.items():
        assert n - own.n_ids / capacity <= counts.get(row, 0) <= n
    assert own.rows[own.counts.argmax()] == seen.most_common(1)[0][0]
