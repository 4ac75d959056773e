"""What ranks that are threads, and ranks out of step, get."""

import torch

from error_cases import case

TITLE = "Ranks"
SETUP = """
from shardwise.testing import run_ranks

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
"""
CASES = [
    case("no ranks", "run_ranks(0, lambda rank: None)", ValueError, of_threads=True),
    case("no time to wait for each other", "run_ranks(2, lambda rank: None, timeout=0)", ValueError, of_threads=True),
    case("torch.distributed's groups, which threads do not have", "mesh.get_group()", ValueError, of_threads=True),
    case(
        "a rank that ends before the others",
        """
        run_ranks(2, lambda rank: sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)]).sum().item() if rank == 0 else None)
        """,
        torch.distributed.DistBackendError,
        of_threads=True,
    ),
    case(
        "ranks that call different things",
        """
        def sum_or_maximum(rank):
            x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
            return x.sum().item() if rank == 0 else x.amax().item()

        run_ranks(2, sum_or_maximum)
        """,
        ValueError,
        of_threads=True,
    ),
    case(
        "columns of different sparse rows",
        """
        def columns(rank):
            grid = sw.init_device_mesh("cpu", (2, 2))
            rows = torch.sparse_coo_tensor(torch.zeros(1, rank, dtype=torch.int64), torch.ones(rank, 1), (3, 1))
            DTensor.from_local(rows, grid, [Shard(0), Shard(1)])._values()

        run_ranks(4, columns)
        """,
        ValueError,
        of_threads=True,
    ),
    case("a dry run of a job without ranks", "sw.dry_run(0)", ValueError),
    case("a dry run of a rank outside its job", "sw.dry_run(4, rank=4)", ValueError),
    case("hosts without ranks", "sw.dry_run(4, ranks_per_host=0)", ValueError),
    case("a dry run for a kind of device that torch does not know", 'sw.dry_run(4, device_type="gpu")', ValueError),
    case("a link without bandwidth", "sw.dry_run(4, links=[(20, 0)])", ValueError),
    case("three links", "sw.dry_run(4, links=[(20, 1)] * 3)", ValueError),
    case("a rate below zero", "sw.dry_run(4, flops=-1)", ValueError),
    case("an exponent that is no number", 'sw.dry_run(4, ids="zipf:one")', ValueError),
    case("a histogram that is not there", 'sw.dry_run(4, ids="loads.txt")', FileNotFoundError),
    case("a dry run within a real one", "sw.dry_run(4).__enter__()", ValueError),
]
