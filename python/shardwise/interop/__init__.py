"""Support for Shardwise's DTensors in other libraries, and conversions to and from torch's and TorchRec's tensors.

`replacements` is the table of functions of other libraries that are replaced once there is a mesh; the other modules define the
replacements.
"""

from shardwise.interop.torch_tensors import from_torch, to_torch
from shardwise.interop.torchrec_states import copy_to_torchrec, from_torchrec, to_torchrec

__all__ = ["copy_to_torchrec", "from_torch", "from_torchrec", "to_torch", "to_torchrec"]
