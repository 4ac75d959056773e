# ruff: noqa: F403
from shardwise._C._embeddings import *
from shardwise._C._layers import *
from shardwise._C._layouts import *
from shardwise._C._runs import *
from shardwise._C._tensors import *
