"""python -m shardwise watch: a page on this machine that shows what a running program does."""

import argparse
import re

from shardwise._commands.arguments import quoted
from shardwise.live.feed import DEFAULT_PORT

EPILOG = """To feed the page, set SHARDWISE_WATCH=1 (or =PORT) for the program, or call shardwise.debug.watch() in it. The page
is served on 127.0.0.1 only, and changes nothing. To see it on another machine: ssh -L 8765:127.0.0.1:8765 MACHINE.

examples:
  python -m shardwise watch
  SHARDWISE_WATCH=1 torchrun --nproc-per-node 4 train.py"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "watch",
        help="serves a page that shows what a running program does",
        description="Serves the page until Ctrl+C, and prints its address.",
        epilog=EPILOG,
    )
    command.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="the port of the page (default: %(default)s; 0: any free port)"
    )
    command.set_defaults(run=run)


def port(text: str) -> int:
    """8765."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no port. Give a number from 0 to 65535.")
    return int(text)


def run(options: argparse.Namespace) -> list[str]:
    try:
        from shardwise.live.server import listener_on, serve
    except ImportError as error:
        raise ValueError(
            f"[watch] the page needs {error.name}, which is not installed. pip install shardwise[watch]."
        ) from None
    try:
        listener = listener_on(options.port)
    except OSError as error:
        raise ValueError(
            f"[watch] port {options.port} of 127.0.0.1 cannot be opened: {error.strerror}. Give another with --port, or --port 0 for a free "
            "one, and set SHARDWISE_WATCH of the program to the same port."
        ) from None
    serve(listener)  # outside of `try`: an error in writing the line of its address is none of the port
    return []
