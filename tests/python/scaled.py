"""Tensor classes of tests: integers and scales, as of quantised weights."""

import torch

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """Integers and one scale: it answers what a list names, on the values. It has no aten.cat."""

    ANSWERED = (
        aten.detach.default,
        aten.alias.default,
        aten.clone.default,
        aten.slice.Tensor,
        aten.t.default,
        aten.mul.Tensor,
        aten.add.Tensor,
        aten.mm.default,
        aten.view.default,
        aten._to_copy.default,
    )

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, numbers.stride(), dtype=torch.float32)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner, scale, outer_size, outer_stride):
        return Scaled(inner["numbers"], scale)

    def __repr__(self):
        return f"Scaled({self.numbers.tolist()}, {self.scale})"

    def values(self):
        return self.numbers.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in cls.ANSWERED:
            raise NotImplementedError(f"{cls.__name__} has no {func}")
        if func in (aten.alias.default, aten.detach.default, aten.clone.default, aten.slice.Tensor, aten.t.default):
            return cls(func(args[0].numbers, *args[1:]), args[0].scale)
        plain = [each.values() if isinstance(each, Scaled) else each for each in args]
        return func(*plain, **(kwargs or {}))


def scaled(rows, columns=4):
    return Scaled(torch.arange(rows * columns, dtype=torch.int8).reshape(rows, columns), 0.5)


class Wide(Scaled):
    """It holds floats, so that an optimizer may change them."""


def wide(rows, columns=4):
    return Wide(torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns), 0.5)


class Rows(torch.Tensor):
    """Integers, a scale for each `block` rows and a table that all have; a slice along dim 0 cuts whole blocks. It has no aten.cat."""

    @staticmethod
    def __new__(cls, numbers, scales, table, block):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, numbers.stride(), dtype=torch.float32)

    def __init__(self, numbers, scales, table, block):
        self.numbers, self.scales, self.table, self.block = numbers, scales, table, block

    def __tensor_flatten__(self):
        return ["numbers", "scales", "table"], self.block

    @staticmethod
    def __tensor_unflatten__(inner, block, outer_size, outer_stride):
        return Rows(inner["numbers"], inner["scales"], inner["table"], block)

    def values(self):
        return self.table[self.numbers.long()] * self.scales.repeat_interleave(self.block, 0)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        x = args[0]
        if func in (aten.detach.default, aten.alias.default):
            return x
        if func is aten.slice.Tensor:
            _, dim, begin, end = args[:4]
            scales = x.scales
            if dim == 0:
                assert begin % x.block == 0 and end % x.block == 0, "not at a block"
                scales = scales[begin // x.block : end // x.block]
            return Rows(func(x.numbers, dim, begin, end), scales, x.table, x.block)
        if func in (aten.mul.Tensor, aten.mm.default):
            return func(*[each.values() if isinstance(each, Rows) else each for each in args])
        raise NotImplementedError(f"Rows has no {func}")


def rows(n, columns=4, block=1):
    numbers = torch.arange(n * columns).remainder(7).to(torch.uint8).reshape(n, columns)
    return Rows(numbers, torch.arange(1.0, 1 + n // block).unsqueeze(1), torch.linspace(-1, 1, 8), block)


class Joined(Scaled):
    """It joins parts itself, and its context has its size, which no slice keeps."""

    ANSWERED = (*Scaled.ANSWERED, aten.cat.default)
    n_joined = 0

    def __tensor_flatten__(self):
        return ["numbers"], (self.scale, tuple(self.shape))

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        assert tuple(inner["numbers"].shape) == context[1] == tuple(outer_size)
        return cls(inner["numbers"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.cat.default:
            Joined.n_joined += 1
            return cls(func([each.numbers for each in args[0]], *args[1:]), args[0][0].scale)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Unjoined(Joined):
    """The same without aten.cat: nobody knows how."""

    ANSWERED = Scaled.ANSWERED

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.cat.default:
            raise NotImplementedError(f"{cls.__name__} has no {func}")
        return super().__torch_dispatch__(func, types, args, kwargs)
