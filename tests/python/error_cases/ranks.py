"""What ranks that are threads, and ranks out of step, get."""

from error_cases import case

TITLE = "Ranks"
SETUP = """
from shardwise.testing import run_ranks

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
"""
CASES = [
    case("no ranks", "run_ranks(0, lambda rank: None)", ValueError, of_threads=True),
    case("torch.distributed's groups, which threads do not have", "mesh.get_group()", ValueError, of_threads=True),
]
