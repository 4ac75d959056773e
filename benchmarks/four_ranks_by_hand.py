"""Operators along sharded dims as an expert writes them: local tensors, collectives of torch.distributed, and torch.autograd.Functions.

Each function takes this rank's parts of the operands and returns this rank's part of the result. It sends as few messages as its author
knows how to, and computes with torch's fused kernels. A rank's range along the sharded dim is [begin, end), cut as torch.chunk() cuts.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def own_range(extent):
    """This rank's range of a dim of `extent`."""
    length = -(-extent // dist.get_world_size())
    begin = min(dist.get_rank() * length, extent)
    return begin, min(begin + length, extent)


def summed(tensor):
    dist.all_reduce(tensor)
    return tensor


def largest(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def gathered(tensor):
    """The tensors of all ranks, which have one shape, stacked along a new first dim."""
    parts = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather(list(parts.unbind()), tensor)
    return parts


class Summed(Function):
    """The sum over the ranks; its gradient is that of each term (Megatron's reduce_from_tensor_model_parallel_region)."""

    @staticmethod
    def forward(ctx, x):
        return summed(x.detach().contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad


class Copied(Function):
    """The tensor itself; its gradient is the sum over the ranks (Megatron's copy_to_tensor_model_parallel_region)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return summed(grad.contiguous())


class CrossEntropy(Function):
    """As Megatron's fused vocabulary-parallel cross entropy: the targets' logits and the sums of exponentials go in one message."""

    @staticmethod
    def forward(ctx, logits, target, n_classes):
        begin, end = own_range(n_classes)
        shifted = logits - largest(logits.amax(1))[:, None]
        is_elsewhere = (target < begin) | (target >= end)
        place = (target - begin).masked_fill_(is_elsewhere, 0)[:, None]
        own = shifted.gather(1, place).squeeze(1).masked_fill_(is_elsewhere, 0)
        exps = shifted.exp_()
        both = summed(torch.stack((own, exps.sum(1))))
        loss = (both[1].log() - both[0]).mean()
        ctx.save_for_backward(exps.div_(both[1][:, None]), place, is_elsewhere)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        softmax, place, is_elsewhere = ctx.saved_tensors
        of_target = is_elsewhere.to(softmax.dtype).sub_(1)[:, None]
        return softmax.clone().scatter_add_(1, place, of_target).mul_(grad / softmax.size(0)), None, None


class BatchNorm(Function):
    """As SyncBatchNorm: one message of each rank's sums forward, and one backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, n_samples):
        eps, n = 1e-5, n_samples * x[0, 0].numel()
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        n_own = x.numel() / x.size(1)
        sums = summed(torch.stack((mean * n_own, (variance + mean.square()) * n_own)))
        mean, square = sums / n
        variance = square - mean.square()
        result = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.n, ctx.eps = n, eps
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, mean, variance = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, variance, None, None, False, ctx.eps, [False, True, True]
        )
        of_weight, of_bias = summed(torch.stack((of_weight, of_bias)))
        scale, invstd = weight * (variance + ctx.eps).rsqrt(), (variance + ctx.eps).rsqrt()
        slope = -scale * invstd * of_weight / ctx.n
        shift = -scale * of_bias / ctx.n - slope * mean
        over_channels = (1, -1, *[1] * (x.dim() - 2))
        scale, slope, shift = (each.view(over_channels) for each in (scale, slope, shift))
        return torch.addcmul(shift, grad, scale).addcmul_(x, slope), of_weight, of_bias, None


class LayerNorm(Function):
    """One message of sums and sums of squares forward, and one of two sums backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, n):
        variance, mean = torch.var_mean(x, 1, correction=0)
        n_own = x.size(1)
        sums = summed(torch.stack((mean * n_own, (variance + mean.square()) * n_own)))
        mean, square = sums / n
        rstd = (square - mean.square() + 1e-5).rsqrt()
        normed = (x - mean[:, None]).mul_(rstd[:, None])
        ctx.save_for_backward(normed, weight, rstd)
        ctx.n = n
        return torch.addcmul(bias, normed, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, weight, rstd = ctx.saved_tensors
        weighted = grad * weight
        product = grad * normed
        sums = summed(torch.stack((weighted.sum(1), product @ weight))).div_(ctx.n)
        result = weighted.sub_(sums[0][:, None]).addcmul_(normed, sums[1][:, None], value=-1)
        return result.mul_(rstd[:, None]), product.sum(0), grad.sum(0), None


class Logsumexp(Function):
    """The ranks' logarithms are gathered in one message."""

    @staticmethod
    def forward(ctx, x):
        result = gathered(x.logsumexp(1)).logsumexp(0)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        return (x - result[:, None]).exp_().mul_(grad[:, None])


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        exps = (x - largest(x.amax(1))[:, None]).exp_()
        result = exps.div_(summed(exps.sum(1))[:, None])
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        weighted = grad * result
        return weighted.addcmul_(result, summed(weighted.sum(1))[:, None], value=-1)


class LogSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        result = x - gathered(x.logsumexp(1)).logsumexp(0)[:, None]
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return torch.addcmul(grad, result.exp(), summed(grad.sum(1))[:, None], value=-1)


class Amax(Function):
    @staticmethod
    def forward(ctx, x):
        result = largest(x.amax(1))
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        is_largest = x == result[:, None]
        return is_largest * (grad / summed(is_largest.sum(1)))[:, None]


def best_of_ranks(x, extent):
    """The largest values of rows and their indices over all ranks: one message of both, as bits of an int64."""
    begin, _ = own_range(extent)
    values, places = x.max(1)
    both = gathered(torch.stack((values.view(torch.int32).to(torch.int64), places.add_(begin))))
    values, rank = both[:, 0].to(torch.int32).view(torch.float32).max(0)
    return values, both[:, 1].gather(0, rank[None])[0]


def scattered(grad, places, shape, extent):
    """Zeros of `shape`, plus gradients at those of the `places` along dim 1 that are this rank's."""
    begin, end = own_range(extent)
    is_elsewhere = (places < begin) | (places >= end)
    return grad.new_zeros(shape).scatter_add_(
        1, (places - begin).masked_fill_(is_elsewhere, 0), grad.masked_fill(is_elsewhere, 0)
    )


def topk_of_ranks(x, extent, k):
    """The k largest values of rows and their indices over all ranks: one message of each rank's, with the indices as bits of floats."""
    begin, _ = own_range(extent)
    values, places = x.topk(k, 1)
    both = gathered(torch.stack((values, places.add_(begin).to(torch.int32).view(torch.float32))))
    values, order = both[:, 0].transpose(0, 1).flatten(1).topk(k, 1)
    return values, both[:, 1].transpose(0, 1).flatten(1).gather(1, order).view(torch.int32).to(torch.int64)


class Largest(Function):
    """The values of rows that `find(x, extent)` returns, and their indices over all ranks."""

    @staticmethod
    def forward(ctx, x, find, extent):
        values, places = find(x, extent)
        ctx.save_for_backward(places)
        ctx.extent, ctx.shape = extent, x.shape
        ctx.mark_non_differentiable(places)
        return values, places

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        (places,) = ctx.saved_tensors
        n_rows = ctx.shape[0]
        return scattered(grad.reshape(n_rows, -1), places.view(n_rows, -1), ctx.shape, ctx.extent), None, None


class Variance(Function):
    """The variance of rows; one message of sums and sums of squares."""

    @staticmethod
    def forward(ctx, x, n):
        variance, mean = torch.var_mean(x, 1, correction=0)
        n_own = x.size(1)
        sums = summed(torch.stack((mean * n_own, (variance + mean.square()) * n_own)))
        mean = sums[0] / n
        ctx.save_for_backward(x, mean)
        ctx.n = n
        return (sums[1] - mean.square() * n) / (n - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, mean = ctx.saved_tensors
        return (x - mean[:, None]).mul_((grad * (2 / (ctx.n - 1)))[:, None]), None


class Norm(Function):
    """The 2-norm along `dim`, which is sharded, or of all elements."""

    @staticmethod
    def forward(ctx, x, dim):
        result = summed(torch.linalg.vector_norm(x, dim=dim, keepdim=True).square_()).sqrt_()
        ctx.save_for_backward(x, result)
        return result.squeeze(1) if dim else result.view(())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        return x * (grad.view_as(result) / result), None


class Cumsum(Function):
    """Sums along dim 1: one message of each rank's totals."""

    @staticmethod
    def forward(ctx, x):
        return before(x.cumsum(1), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        own = grad.flip(1).cumsum(1).flip(1)
        return before(own, 0, of_later_ranks=True)


def before(sums, place, of_later_ranks=False):
    """Adds the totals of earlier (or later) ranks to this rank's running sums, whose own total is at `place`."""
    totals, rank = gathered(sums[:, place].contiguous()), dist.get_rank()
    others = totals[rank + 1 :] if of_later_ranks else totals[:rank]
    return sums.add_(others.sum(0)[:, None])


def embedding_of_rows(table, ids, n_rows):
    begin, end = own_range(n_rows)
    is_elsewhere = (ids < begin) | (ids >= end)
    rows = F.embedding((ids - begin).masked_fill_(is_elsewhere, 0), table)
    return Summed.apply(rows.masked_fill(is_elsewhere[..., None], 0))


def gather(x, index, extent):
    begin, end = own_range(extent)
    is_elsewhere = (index < begin) | (index >= end)
    values = x.gather(1, (index - begin).masked_fill_(is_elsewhere, 0))
    return Summed.apply(values.masked_fill(is_elsewhere, 0))
