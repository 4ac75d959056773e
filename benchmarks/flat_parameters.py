"""Fully sharded parameters written by hand: each unit of a model keeps its parameters in one flat buffer, of which a rank has a part."""

import torch
import torch.distributed as dist
from torch import nn


class FlatUnit:
    """The parameters of `modules`, gathered by one all-gather and reduced by one reduce-scatter (an all-reduce over Gloo). `is_kept`: from the forward to the backward."""

    def __init__(self, modules, is_kept):
        self.is_kept = is_kept
        places = [(module, name) for each in modules for module in each.modules() for name in module._parameters]
        self.places = [place for place in places if place[0]._parameters[place[1]] is not None]
        wholes = [module._parameters.pop(name).detach() for module, name in self.places]
        self.shapes, self.sizes = [each.shape for each in wholes], [each.numel() for each in wholes]
        flat = torch.cat([each.flatten() for each in wholes])
        n_ranks = dist.get_world_size()
        self.sizes.append(-len(flat) % n_ranks)  # of zeros at the end
        flat = nn.functional.pad(flat, (0, self.sizes[-1]))
        self.own = nn.Parameter(flat.chunk(n_ranks)[dist.get_rank()].clone())
        self.whole = flat.requires_grad_()
        self.n_bytes = flat.untyped_storage().nbytes()
        self.whole.register_post_accumulate_grad_hook(self.reduce)
        self.release()

    def release(self):
        self.whole.untyped_storage().resize_(0)

    def gather(self):
        if self.whole.untyped_storage().nbytes() == 0:
            self.whole.untyped_storage().resize_(self.n_bytes)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.whole):
                dist.all_gather_into_tensor(self.whole, self.own.detach())

    def reduce(self, whole):
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, whole.grad)
        self.own.grad.div_(dist.get_world_size())
        whole.grad = None
        self.release()

    def set_parameters(self):
        self.gather()
        parts = self.whole.split(self.sizes)
        for (module, name), part, shape in zip(self.places, parts, self.shapes):
            setattr(module, name, part.view(shape))

    def around(self, module):
        """Gathers before a forward of `module`, and before its backward."""

        def leave(module, args, output):
            if not self.is_kept:
                self.release()
                output.register_hook(lambda grad: self.gather())

        module.register_forward_pre_hook(lambda module, args: self.set_parameters())
        module.register_forward_hook(leave)


def fully_sharded(model):
    """Shards each of `model.layers`, and then the rest of the model. Returns the parameters of this rank."""
    units = []
    for layer in model.layers:
        units.append(FlatUnit([layer], is_kept=False))
        units[-1].around(layer)
    units.append(FlatUnit([model], is_kept=True))
    units[-1].around(model)
    return [unit.own for unit in units]
