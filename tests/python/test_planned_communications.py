"""On a mesh of device type "meta" over a fake process group, ranks plan the communications that other ranks send over Gloo."""

import json

import planned_program
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchrun import expect_all_well

from shardwise import _C


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sent")
    expect_all_well("planned_program.py", planned_program.N_RANKS, "write", folder)
    return lambda case, rank: json.loads((folder / f"{case}-{rank}.json").read_text())


@pytest.mark.parametrize("case", planned_program.CASES)
def test_what_is_planned_on_meta_is_what_is_sent(case, sent):
    for rank in range(planned_program.N_RANKS):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=planned_program.N_RANKS)
        try:
            _C.plan_for("cpu")
            planned = planned_program.recorded(case, planned_program.Setting("meta"))
        finally:
            _C.plan_for(None)
            dist.destroy_process_group()
            _C.forget_world()
        known = sent(case, rank)
        assert planned["collectives"] == known["collectives"]
        assert planned["communications"] == known["communications"]
        assert planned["communications"]
