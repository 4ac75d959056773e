"""Completion in bash, as docs/pictures.md tells users to switch it on: bash asks the installed command what may follow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PACKAGE

from shardwise.__main__ import COMMANDS, parser

BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# What pip writes for [project.scripts]; an installed package has it.
COMMAND = f"""#!{sys.executable}
# PYTHON_ARGCOMPLETE_OK
from shardwise.__main__ import main
main()
"""

# The variables that bash gives a completing function when Tab is pressed at the end of the line, and what the function answers.
SCRIPT = """
eval "$(register-python-argcomplete --no-defaults shardwise)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<<"$1"
[[ $1 != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $(complete -p shardwise) =~ -F\\ ([^ ]+) ]]
[[ $(complete -p shardwise) != *"-o default"* ]]  # bash would offer files where nothing is offered
"${BASH_REMATCH[1]}" shardwise "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completions(line: str, folder: Path) -> list[str]:
    command = BIN / "shardwise"
    if not command.exists():
        command = folder / "shardwise"
        command.write_text(COMMAND)
        command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(command.parent), str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    ran = subprocess.run(
        ["bash", "--norc", "-ec", SCRIPT, "bash", line],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=Path(__file__).parent,
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return sorted(filter(None, map(str.strip, ran.stdout.splitlines())))


# the line, what may stand at its end
LINES = [
    ("shardwise plan", ["plan", "plan-embeddings"]),
    ("shardwise plan --objective ", ["bytes", "time"]),
    ("shardwise show --shape 8x8 --form", ["--format"]),
    ("shardwise diff --dtype bflo", ["bfloat16"]),
    ("shardwise show --mesh ", []),
    ("shardwise show --mesh 2 --file", ["--file"]),
    ("shardwise show --mesh 2 --file lay", ["layouts.py"]),
    ("shardwise hang lay", ["layouts.py"]),
]


@pytest.mark.parametrize("line, expected", LINES)
def test_bash_completes(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completions(line, tmp_path) == expected


def test_every_command_is_offered(tmp_path: Path) -> None:
    (commands,) = parser()._subparsers._group_actions
    assert len(commands.choices) >= len(COMMANDS)
    assert set(completions("shardwise ", tmp_path)) - {"-h", "--help", "--version"} == set(commands.choices)
