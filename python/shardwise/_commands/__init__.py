"""The commands of `python -m shardwise`: a file each, whose add_to(commands) adds the parser of its command.

A parser's default `run` takes the parsed options and returns the lines to print. A ValueError, IndexError or OSError that it raises is
an error of usage.
"""
