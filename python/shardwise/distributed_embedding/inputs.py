"""Converts the inputs of a DistributedEmbedding to the form that the C++ layer takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Maybe = torch.Tensor | None
Parts = tuple[torch.Tensor, Maybe, Maybe, Maybe]  # ids, offsets, lengths, weights


@dataclass(frozen=True, eq=False)
class RaggedIds:
    """The ids of one feature, if samples have different numbers of ids, or if ids have weights.

    ids [n] with offsets [samples + 1] (sample i has the ids from offsets[i] to offsets[i + 1]) or lengths [samples]; without either, ids
    [samples] or [samples, ids per sample]. weights: the shape of the ids and the dtype of the table; each row is multiplied by its weight.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("words", 100, 4)])
    >>> two_samples = sw.RaggedIds(torch.tensor([5, 6, 7]), lengths=torch.tensor([1, 2]))
    >>> layer([two_samples])[0].shape
    torch.Size([2, 4])
    """

    ids: torch.Tensor
    offsets: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    weights: torch.Tensor | None = None


def is_keyed(inputs: Any) -> bool:
    """True for TorchRec's KeyedJaggedTensor, recognised by its name: TorchRec need not be installed."""
    return type(inputs).__name__ == "KeyedJaggedTensor"


def in_order(inputs: Any, names: Sequence[str]) -> list[Any]:
    """The inputs in the order of the features: from a sequence, from a dict by name, or from a KeyedJaggedTensor.

    Raises ValueError for too many, too few and unknown names.
    """
    if is_keyed(inputs):
        jagged = {key: inputs[key] for key in inputs.keys()}  # noqa: SIM118
        inputs = {key: RaggedIds(of.values(), None, of.lengths(), of.weights_or_none()) for key, of in jagged.items()}
    if isinstance(inputs, Mapping):
        missing, unknown = [n for n in names if n not in inputs], [n for n in inputs if n not in names]
        if missing or unknown:
            raise ValueError(
                f"[DistributedEmbedding] inputs lack the features {missing}, and have the unknown names {unknown}. Give one for each of "
                f"{list(names)}."
            )
        return [inputs[name] for name in names]
    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, Sequence):
        raise TypeError(
            f"[DistributedEmbedding] got a {type(inputs).__name__}. Give a list with the ids of each feature, a dict by "
            "feature, or a KeyedJaggedTensor."
        )
    if len(inputs) != len(names):
        raise ValueError(
            f"[DistributedEmbedding] got {len(inputs)} inputs for {len(names)} features. Give one for each of {list(names)}."
        )
    return list(inputs)


def n_samples(parts: Sequence[Parts | None]) -> int:
    """The number of samples of the first feature that has ids on this rank, for reports."""
    for part in parts:
        if part is not None:
            ids, offsets, lengths, _ = part
            if lengths is not None:
                return lengths.numel()
            return max(0, offsets.numel() - 1) if offsets is not None else len(ids) if ids.dim() else 1
    return 0


def parts_of(value: Any, name: str) -> Parts | None:
    """The parts of the ids of one feature; None for None: its table is on other ranks. Raises TypeError for other values."""
    if value is None:
        return None
    if isinstance(value, RaggedIds):
        for what in ("ids", "offsets", "lengths", "weights"):
            given = getattr(value, what)
            if not isinstance(given, torch.Tensor) and (given is not None or what == "ids"):
                raise TypeError(
                    f"[DistributedEmbedding] the {what} of feature {name} are a {type(given).__name__}. Give a torch.Tensor."
                )
        return value.ids, value.offsets, value.lengths, value.weights
    if isinstance(value, torch.Tensor):
        if not value.is_nested:
            return value, None, None, None
        if value.layout != torch.jagged:
            raise TypeError(
                f"[DistributedEmbedding] feature {name} is a nested tensor of layout {value.layout}. Use jagged."
            )
        offsets, lengths = value.offsets(), value.lengths()  # type: ignore[attr-defined]
        if lengths is None:
            return value.values(), offsets, None, None
        parts = [
            value.values()[first : first + n] for first, n in zip(offsets.tolist(), lengths.tolist(), strict=False)
        ]
        return torch.cat(parts) if parts else value.values()[:0], None, lengths, None
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, torch.Tensor) for part in value):
        return value[0], value[1], None, None
    raise TypeError(
        f"[DistributedEmbedding] feature {name} is a {type(value).__name__}. Give ids as a tensor, (ids, offsets), RaggedIds or "
        "a nested tensor."
    )
