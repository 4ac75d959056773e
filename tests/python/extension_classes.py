"""Classes of parameters that say themselves how they are gathered, and layers that compute the same with plain parameters."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Carried(torch.Tensor):
    """Values inside, on which all operators run; some give a tensor of the class again."""

    KEPT = (
        aten.detach.default,
        aten.clone.default,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.new_zeros.default,
        aten.empty_like.default,
        aten.view.default,
        aten.as_strided.default,
        aten._to_copy.default,
    )

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, values.stride(), dtype=values.dtype, device=values.device
        )

    def __init__(self, values):
        self.values_ = values

    def __tensor_flatten__(self):
        return ["values_"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, outer_size, outer_stride):
        return cls(inner["values_"])

    def __repr__(self):
        return f"{type(self).__name__}({self.values_.tolist()})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        of_class = args[0] if args and isinstance(args[0], Carried) else None
        inner, kwargs = tree_map_only(Carried, lambda each: each.values_, (args, kwargs or {}))
        result = func(*inner, **kwargs)
        if func._schema.is_mutable and of_class is not None:
            return of_class
        return tree_map_only(torch.Tensor, type(of_class), result) if func in cls.KEPT else result


class Rounded(Carried):
    """It travels as bfloat16, and is computed with as `param_dtype`."""

    calls: list = []  # noqa: RUF012  what the hooks got

    @staticmethod
    def rounded(values):
        return values.bfloat16().to(values.dtype)

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        type(self).calls.append(("pre", mesh, outer_size, outer_stride, module, mp_policy, self))
        return (self.values_.bfloat16(),), ("metadata", tuple(self.shape))

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        (gathered,) = all_gather_outputs
        assert metadata == ("metadata", tuple(self.shape))
        type(self).calls.append(("post", gathered.shape, gathered.dtype, param_dtype, out))
        if out is not None:
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
                out.copy_(gathered[: out.shape[0]])  # torch's are filled up
            return None
        whole = gathered.to(param_dtype)
        return whole, (gathered, whole)


class Padded(Rounded):
    """The same, filled up to the longest part, as torch's fully_shard wants it."""

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        rows = self.values_.new_zeros((math.ceil(outer_size[0] / mesh.size()), *outer_size[1:]), dtype=torch.bfloat16)
        rows[: self.shape[0]] = self.values_
        return (rows,), ("metadata", tuple(self.shape))


class Codes(torch.Tensor):
    """A whole matrix of 8-bit numbers with a scale per row."""

    @staticmethod
    def __new__(cls, numbers, scales, dtype, dim=0):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), dtype=dtype, device=numbers.device
        )

    def __init__(self, numbers, scales, dtype, dim=0):
        self.numbers, self.scales, self.dim_of_scales = numbers, scales, dim

    def __repr__(self):
        return f"Codes({self.numbers.tolist()})"

    def plain(self):
        return decoded(self.numbers, self.scales.unsqueeze(1 - self.dim_of_scales)).to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        self = next(each for each in args if isinstance(each, Codes))
        if func in (aten.detach.default, aten.as_strided.default):  # torch's fully_shard asks for the same sizes
            return cls(self.numbers, self.scales, self.dtype, self.dim_of_scales)
        if func is aten.t.default:
            return cls(self.numbers.t(), self.scales, self.dtype, 1 - self.dim_of_scales)
        return func(*tree_map_only(Codes, cls.plain, args), **(kwargs or {}))


def decoded(numbers, scales):
    return (numbers.float() - 128) * scales


class Quantised(Carried):
    """It travels as bytes, with a scale per row and, of no row, how many rows a rank has; the whole one is of another class."""

    @staticmethod
    def codes(values):
        scales = values.abs().amax(1).clamp(min=1e-6) / 127 if values.numel() else values.new_zeros(values.shape[0])
        return ((values / scales[:, None]).round() + 128).to(torch.uint8), scales

    @staticmethod
    def rounded(values):
        numbers, scales = Quantised.codes(values)
        return decoded(numbers, scales[:, None])

    def fsdp_pre_all_gather(self, mesh):
        numbers, scales = self.codes(self.values_)
        return [numbers, scales.float(), torch.tensor(self.shape[0])], mesh.size()

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        numbers, scales, n_rows = all_gather_outputs
        assert n_rows.shape == (metadata,) and n_rows.sum() == numbers.shape[0] == scales.shape[0]
        if out is not None:
            assert isinstance(out, Codes) and out.numbers.data_ptr() == numbers.data_ptr()
            out.scales.copy_(scales)
            return None
        scales = scales.clone()
        return Codes(numbers, scales, param_dtype), (numbers, scales)


class _Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, rounded):
        return rounded(weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class PlainLinear(nn.Linear):
    """A layer with a plain weight, that computes with what the class makes of it."""

    def __init__(self, cls, *sizes, **options):
        super().__init__(*sizes, **options)
        self.cls = cls

    def forward(self, x):
        return F.linear(x, _Rounding.apply(self.weight, self.cls.rounded), self.bias)


class Layers(nn.Module):
    """A group of weights of a class beside plain parameters, one of them frozen, and one with fewer rows than ranks."""

    def __init__(self, make, rows=10):
        super().__init__()
        self.first = make(6, rows)
        self.frozen = make(rows, 4, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.few = make(4, 2)
        self.scale = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x):
        return self.few(torch.tanh(self.frozen(torch.tanh(self.first(x))) * self.scale))


class Stack(nn.Module):
    def __init__(self, make, rows=10, last=5):
        super().__init__()
        self.blocks = nn.ModuleList([Layers(make, rows), Layers(make, rows)])
        self.between, self.last = filled(nn.Linear(2, 6)), make(2, last)

    def forward(self, x):
        return self.last(self.blocks[1](self.between(self.blocks[0](x))))


@torch.no_grad()
def filled(layer):
    """With values that do not come from torch's generator, which ranks share that are threads."""
    for parameter in layer.parameters():
        own = torch.Generator().manual_seed(sum(parameter.shape))
        parameter.copy_(torch.rand(parameter.shape, generator=own, device="cpu") - 0.5)
    return layer


def of_class(cls):
    """Makes layers whose weight is of `cls`."""

    def make(*sizes, **options):
        layer = filled(nn.Linear(*sizes, **options))
        layer.weight = nn.Parameter(cls(layer.weight.detach()))
        return layer

    return make


def plain_of(cls):
    return lambda *sizes, **options: filled(PlainLinear(cls, *sizes, **options))


X = torch.rand(3, 12, 6, generator=torch.Generator().manual_seed(3))


def train(model, part=lambda x: x, optimizer=torch.optim.AdamW, n_steps=3):
    """Returns the losses; gradients are those of the last step."""
    optimizer = optimizer([each for each in model.parameters() if each.requires_grad], lr=0.05)
    losses = []
    for x in X[:n_steps]:
        optimizer.zero_grad()
        loss = model(part(x)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain_values(tensor):
    """The local values of a parameter of a class, or of a plain one."""
    return tensor.values_ if isinstance(tensor, Carried) else tensor
