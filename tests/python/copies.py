"""Ways to copy a tensor through bytes."""

import io
import pickle

import torch


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def through_save(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
