"""Overlaps the exchange of the next batch's ids with the computation of this batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardwise.distributed_embedding.layer import DistributedEmbedding


class EmbeddingPipeline:
    """Iterates over batches and their vectors. The ids of the next batch are sent while the program computes with the current one.

        for batch, vectors in sw.EmbeddingPipeline(layer, loader, lambda batch: batch["ids"]):
            loss = model(batch, vectors)
            loss.backward()
            optimizer.step()

    batches: the same number on every rank; a rank with fewer leaves the others waiting. ids_of: returns a batch's inputs for the layer.
    Each batch gets the rows as they are after the step before it, because only ids are sent ahead. Cost: the ids of one more batch in memory.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> optimizer = sw.optim.FusedSGD(layer.parameters(), lr=0.1)
    >>> batches = [torch.tensor([1, 2]), torch.tensor([2, 3])]
    >>> for ids, (user,) in sw.EmbeddingPipeline(layer, batches, lambda ids: [ids]):
    ...     user.sum().backward()  # the next batch's ids are on their way
    """

    def __init__(self, layer: DistributedEmbedding, batches: Iterable[Any], ids_of: Callable[[Any], Any]) -> None:
        self._layer = layer
        self._batches = batches
        self._ids_of = ids_of

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        now = None
        for batch in self._batches:
            later = (batch, self._layer.start(self._ids_of(batch)))
            if now is not None:
                yield now[0], now[1].wait()
            now = later
        if now is not None:
            yield now[0], now[1].wait()
