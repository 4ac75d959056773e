"""The main module of a process that a program on Shardwise spawns."""

from shardwise.compat.program import run_as_main

if __name__ == "__mp_main__":
    globals().update({name: value for name, value in run_as_main().items() if name != "__name__"})
