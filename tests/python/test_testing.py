"""Ranks as threads."""

import threading
import time

import pytest
import torch

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks


def test_results_come_by_rank():
    assert run_ranks(3, lambda rank: rank * 2) == [0, 2, 4]


def test_the_first_failure_is_raised_as_it_was_with_its_rank_and_releases_the_others():
    class Mine(Exception):
        pass

    released = []

    def body(rank):
        tensor = sw.ones(6, device_mesh=sw.init_device_mesh("cpu", (3,)), placements=[Shard(0)])
        if rank == 1:
            raise Mine("no more")
        try:
            tensor.full_tensor()
        except torch.distributed.DistBackendError as error:
            released.append(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(Mine, match="no more") as caught:
        run_ranks(3, body)
    assert caught.value.__notes__ == ["raised on rank 1 of 3"]
    assert time.monotonic() - start < 30
    assert len(released) == 2 and all("rank 1" in text and "Mine: no more" in text for text in released)


def test_a_rank_that_returns_early_is_named_by_those_who_wait():
    def body(rank):
        tensor = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        if rank == 0:
            tensor.full_tensor()

    with pytest.raises(torch.distributed.DistBackendError, match="rank 1 has finished"):
        run_ranks(2, body)


def test_a_rank_that_does_not_come_is_named_after_the_timeout():
    def body(rank):
        tensor = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        if rank == 1:
            time.sleep(2)
        tensor.full_tensor()

    with pytest.raises(torch.distributed.DistBackendError, match=r"rank 0|rank 1"):
        run_ranks(2, body, timeout=0.5)


def test_an_interruption_releases_the_ranks(monkeypatch):
    released, may_end = [], threading.Event()
    join, joined = threading.Thread.join, []

    def interrupted_once(thread, *args):
        joined.append(thread)
        if len(joined) == 1:
            raise KeyboardInterrupt
        join(thread, *args)

    def body(rank):
        tensor = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        if rank == 1:
            may_end.wait(20)
            return
        try:
            tensor.full_tensor()
        except torch.distributed.DistBackendError as error:
            released.append(str(error))
            raise
        finally:
            may_end.set()

    monkeypatch.setattr(threading.Thread, "join", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        run_ranks(2, body)
    assert not any(thread.is_alive() for thread in joined)
    assert len(joined) == 3 and len(released) == 1 and "KeyboardInterrupt" in released[0]


def test_strict_ranks_name_what_would_hang_over_nccl():
    def body(rank):
        lines = [sw.DeviceMesh("cpu", ranks) for ranks in ([0, 1], [0, 1, 2])]
        for mesh in lines if rank == 0 else reversed(lines):
            sw.ones(6, device_mesh=mesh, placements=[Shard(0)]).sum().full_tensor()

    with pytest.raises(torch.distributed.DistBackendError, match=r"wait for each other: rank [01] is in all_reduce"):
        run_ranks(3, body, strict=True)


def test_strict_ranks_compute_the_same():
    def body(rank):
        x = sw.ones(5, device_mesh=sw.init_device_mesh("cpu", (3,)), placements=[Shard(0, sizes=[0, 5, 0])])
        return x.cumsum(0).full_tensor().tolist()

    assert run_ranks(3, body, strict=True) == run_ranks(3, body) == [[1, 2, 3, 4, 5]] * 3


def test_worlds_follow_one_another_and_may_be_many():
    for n_ranks in (1, 4, 2):

        def body(rank, n_ranks=n_ranks):
            mesh = sw.init_device_mesh("cpu", (n_ranks,))
            return sw.ones(n_ranks, device_mesh=mesh, placements=[Shard(0)]).sum().item()

        assert run_ranks(n_ranks, body) == [n_ranks] * n_ranks


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        run_ranks(0, lambda rank: None)


def test_a_backward_pass_communicates_on_its_ranks_thread():
    def body(rank):
        x = sw.ones(5, requires_grad=True, device_mesh=sw.init_device_mesh("cpu", (3,)), placements=[Shard(0)])
        (x.redistribute(placements=[Replicate()]) ** 2).sum().backward()
        return x.grad.full_tensor().tolist()

    assert run_ranks(3, body) == [[2.0] * 5] * 3


def test_ranks_may_wait_without_end_and_not_for_no_time():
    def body(rank):
        return sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[sw.Shard(0)]).sum().item()

    assert run_ranks(2, body, timeout=float("inf")) == [4.0, 4.0]
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=r"\[run_ranks\] timeout is"):
            run_ranks(2, body, timeout=timeout)
