"""Scripts that tests run in a dry run."""

from shardwise._dry_run.job import Program

HEAD = """
import torch, torch.distributed as dist, shardwise as sw
mesh = sw.init_device_mesh("cuda", (8, 4), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
"""


def run_of(tmp_path, text, n_ranks=32):
    script = tmp_path / "program.py"
    script.write_text(HEAD + text)
    return Program((str(script),), n_ranks, "cuda", None, 8)
