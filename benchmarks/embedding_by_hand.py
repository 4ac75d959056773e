"""Lookups in a table sharded by rows, written by hand: plain torch, c10d's collectives, and a derivative without autograd.

Each function of a Problem returns a call. The call runs the lookup and its backward, and returns the results and the gradient of
this rank's rows. Buffers are allocated within the call. Pre: all ranks have the same number of rows, and of ids in a batch.
"""

import torch
import torch.distributed as dist

# Newer names, where torch has them.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def gathered(own):
    whole = own.new_empty(dist.get_world_size() * len(own), *own.shape[1:])
    all_gather(whole, own)
    return whole


def reduce_scattered(whole):
    """This rank's part of a sum over ranks. The parts are exchanged and added up, which is faster than Gloo's own reduce-scatter."""
    arrived = torch.empty_like(whole)
    dist.all_to_all_single(arrived, whole)
    return arrived.view(dist.get_world_size(), -1, *whole.shape[1:]).sum(0)


def masked_lookup(table, ids, begin):
    """This rank's rows, and zeros for the rows of other ranks."""
    local = ids.reshape(-1) - begin
    is_elsewhere = (local < 0) | (local >= len(table))
    rows = table.index_select(0, local.masked_fill_(is_elsewhere, 0)).masked_fill_(is_elsewhere.unsqueeze(1), 0)
    return rows.view(*ids.shape, -1)


def masked_gradient(grad, ids, begin, n_rows):
    """The gradient of this rank's rows, from the gradient of all results."""
    local = ids.reshape(-1) - begin
    places = ((local >= 0) & (local < n_rows)).nonzero().view(-1)
    rows = grad.view(-1, grad.shape[-1]).index_select(0, places)
    return torch.zeros(n_rows, grad.shape[-1]).index_add_(0, local.index_select(0, places), rows)


def all_reduce(problem):
    """Each rank looks all ids up in its rows; the results are summed everywhere."""
    table, (begin, _) = problem.table(), problem.own_rows()
    own_ids, own_grad = problem.own(problem.ids), problem.own(problem.gradient())

    def call():
        ids = gathered(own_ids) if problem.is_batch_sharded else own_ids
        result = masked_lookup(table, ids, begin)
        dist.all_reduce(result)
        result = problem.own(result)
        grad = gathered(own_grad) if problem.is_batch_sharded else own_grad
        return result, masked_gradient(grad, ids, begin, len(table))

    return call


def reduce_scatter(problem):
    """Each rank looks all ids up in its rows; a reduce-scatter gives each rank the sums of its own batch."""
    table, (begin, _) = problem.table(), problem.own_rows()
    own_ids, own_grad = problem.own(problem.ids), problem.own(problem.gradient())

    def call():
        ids = gathered(own_ids) if problem.is_batch_sharded else own_ids
        result = reduce_scattered(masked_lookup(table, ids, begin))
        if not problem.is_batch_sharded:
            return gathered(result), masked_gradient(own_grad, ids, begin, len(table))
        return result, masked_gradient(gathered(own_grad), ids, begin, len(table))

    return call


def exchanged(sent, sent_counts, received_counts):
    received = sent.new_empty(sum(received_counts), *sent.shape[1:])
    dist.all_to_all_single(received, sent, received_counts, sent_counts)
    return received


def exchanged_counts(counts):
    """The number of ids that go to each rank, and the number that come from it."""
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    return counts.tolist(), received.tolist()


def all_to_all(problem):
    """Each id is sent to the rank that has its row, and the row is sent back. Gradients are sent to the owners of the rows."""
    table, (begin, _) = problem.table(), problem.own_rows()
    own_ids, own_grad = problem.own(problem.ids), problem.own(problem.gradient())
    n_columns = problem.n_columns

    def call():
        ids = own_ids.view(-1)
        owner = ids // len(table)
        order = owner.argsort()
        sent, received = exchanged_counts(owner.bincount(minlength=dist.get_world_size()))
        local = exchanged(ids.index_select(0, order), sent, received) - begin
        rows = exchanged(table.index_select(0, local), received, sent)
        result = torch.empty_like(rows).index_copy_(0, order, rows)
        del rows
        grad = exchanged(own_grad.view(-1, n_columns).index_select(0, order), sent, received)
        return result.view(*own_ids.shape, -1), torch.zeros(len(table), n_columns).index_add_(0, local, grad)

    return call


def all_to_all_of_unique(problem):
    """The same with each id of a rank sent once."""
    table, (begin, _) = problem.table(), problem.own_rows()
    own_ids, own_grad = problem.own(problem.ids), problem.own(problem.gradient())
    n_columns = problem.n_columns
    ends = torch.arange(dist.get_world_size() + 1) * len(table)

    def call():
        ids, place = own_ids.view(-1).unique(return_inverse=True)  # sorted: by owner, therefore
        sent, received = exchanged_counts(torch.searchsorted(ids, ends).diff())
        local = exchanged(ids, sent, received) - begin
        rows = exchanged(table.index_select(0, local), received, sent)
        result = rows.index_select(0, place)
        del rows
        summed = torch.zeros(len(ids), n_columns).index_add_(0, place, own_grad.view(-1, n_columns))
        grad = exchanged(summed, sent, received)
        return result.view(*own_ids.shape, -1), torch.zeros(len(table), n_columns).index_add_(0, local, grad)

    return call


def broadcast_rows(problem):
    """All ranks know all ids, and which rank has which row. Each rank sends its rows to all others, each row once."""
    table, (begin, end) = problem.table(), problem.own_rows()
    ids, grad = problem.ids, problem.gradient()
    ends = torch.arange(dist.get_world_size() + 1) * len(table)

    def call():
        rows_of, place = ids.view(-1).unique(return_inverse=True)
        found = torch.searchsorted(rows_of, ends).diff().tolist()
        rows = table.new_empty(len(rows_of), problem.n_columns)
        pieces = rows.split(found)
        own = rows_of.split(found)[dist.get_rank()] - begin
        torch.index_select(table, 0, own, out=pieces[dist.get_rank()])
        for work in [dist.broadcast(piece, rank, async_op=True) for rank, piece in enumerate(pieces)]:
            work.wait()
        result = rows.index_select(0, place).view(*ids.shape, -1)
        del rows, pieces
        return result, masked_gradient(grad, ids, begin, end - begin)

    return call


def pooled(problem):
    """Each rank sums its rows of every bag. A reduce-scatter adds these sums."""
    table, (begin, _) = problem.table(), problem.own_rows()
    own_ids, own_grad = problem.own(problem.ids), problem.own(problem.gradient())
    n_bags, per_bag = problem.ids.shape

    def call():
        local = gathered(own_ids).view(-1) - begin
        places = ((local >= 0) & (local < len(table))).nonzero().view(-1)
        local, bag = local.index_select(0, places), places // per_bag
        starts = torch.searchsorted(bag, torch.arange(n_bags))
        sums = torch.nn.functional.embedding_bag(local, table, starts, mode="sum")
        grad = gathered(own_grad)
        table_grad = torch.zeros(len(table), grad.shape[1]).index_add_(0, local, grad.index_select(0, bag))
        return reduce_scattered(sums), table_grad

    return call
