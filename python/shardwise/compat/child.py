"""What a process imports as its main module when a program on Shardwise spawns it."""

from shardwise.compat.program import run_as_main

if __name__ == "__mp_main__":
    globals().update({name: value for name, value in run_as_main().items() if name != "__name__"})
