"""A page on this machine that shows what a running program does.

    python -m shardwise watch                                                  # serves the page
    SHARDWISE_WATCH=1 torchrun --nproc-per-node 4 train.py                     # feeds it; so does shardwise.debug.watch() in train.py

`snapshot` describes a rank, `feed` sends snapshots, `server` receives them, `form` checks them, `board` keeps the last valid one of each
rank, and `page.html` shows them. The page only reads, and cannot change anything; a program that feeds no page starts no thread.
"""

from shardwise.live.feed import Feed, watch, watch_if_asked

__all__ = ["Feed", "watch", "watch_if_asked"]
