"""Context parallelism of attention modules, by a parallel style: the private names of torch by which libraries apply it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from shardwise.device_mesh import DeviceMesh
from shardwise.experimental.sequence_attention import SequenceAttention, SequenceSplit
from shardwise.experimental.sharded_sequences import check_buffers, options
from shardwise.module_tensors import run_within
from shardwise.parallel.style import ParallelStyle, one_dim


class SequenceParallelAttention(ParallelStyle):
    """The style of a module whose forward calls F.scaled_dot_product_attention on this rank's positions: each query sees all ranks' keys.

    Positions are those that shard_sequences() gave the ranks. Gradients of keys and values are summed over the ranks. Raises
    NotImplementedError for flex_attention.
    """

    class AttentionType(Enum):
        FLEX = "flex_attention"
        SDPA = "scaled_dot_product_attention"

    def __init__(self, seq_dim: int, attention_type: AttentionType) -> None:
        if attention_type.value != self.AttentionType.SDPA.value:
            raise NotImplementedError(
                f"[context_parallel] {attention_type.value} is computed on whole sequences only, not on parts of them on several ranks. Use "
                "attention by F.scaled_dot_product_attention, or leave context parallelism out."
            )
        if seq_dim != 2:
            raise NotImplementedError(
                f"[context_parallel] positions are along dim {seq_dim}: attention has them along dim 2, after batches and heads. Use seq_dim=2."
            )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mesh = one_dim(self, device_mesh)
        run_within(module, lambda: SequenceAttention(mesh, [], is_balanced=options.enable_load_balance))
        return module


@dataclass
class HeadTailBalancer:
    """Asks shard_sequences() for positions from the head and from the tail for each rank."""

    seq_length: int
    world_size: int
    device: str | torch.device


def shard_sequences(
    mesh: DeviceMesh, buffers: Sequence[Any], seq_dims: Sequence[int], load_balancer: object = None
) -> list[torch.Tensor]:
    """This rank's positions of tensors that are equal on all ranks. Later calls of attention take their tensors for parts of this kind.

    Raises NotImplementedError for masks of flex_attention and for balancers other than HeadTailBalancer, and ValueError for lengths that do not
    divide: a module's attention does not know the length of the whole sequence. context_parallel() takes any lengths.
    """
    if load_balancer is not None and not isinstance(load_balancer, HeadTailBalancer):
        raise NotImplementedError(
            f"[context_parallel] positions cannot be balanced by {type(load_balancer).__name__}. Use _HeadTailLoadBalancer, or none."
        )
    for buffer in buffers:
        if not isinstance(buffer, torch.Tensor):
            raise NotImplementedError(
                f"[context_parallel] a {type(buffer).__name__} cannot be sharded: flex_attention is computed on whole sequences only. Use "
                "attention by F.scaled_dot_product_attention."
            )
    check_buffers(mesh, buffers, seq_dims)
    is_balanced = load_balancer is not None
    n_runs = mesh.size() * (2 if is_balanced else 1)
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        if buffer.size(dim) % n_runs:
            raise ValueError(
                f"[context_parallel] {buffer.size(dim)} positions do not divide into {n_runs} runs. Pad them, or use context_parallel(), which "
                "takes any number."
            )
    options.enable_load_balance = is_balanced
    rank = mesh.get_local_rank()
    return [
        SequenceSplit(buffer.size(dim), mesh.size(), is_balanced).part(buffer, dim, rank)
        for buffer, dim in zip(buffers, seq_dims, strict=True)
    ]


def attend_over_ranks() -> None:
    """Changes nothing: the style alone makes a module's attention see all ranks' keys, and undoes that after the module's forward."""
