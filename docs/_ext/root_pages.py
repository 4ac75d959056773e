"""Pages that are made when the documentation is built: of files beside docs/, of the C++ headers, of the cases of errors.

They lie in docs/_generated, which git does not keep.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

FROM_ROOT = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}

DOXYFILE = """
PROJECT_NAME = Shardwise
OUTPUT_DIRECTORY = {output}
INPUT = {headers}
STRIP_FROM_PATH = {root}
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
MARKDOWN_SUPPORT = YES
JAVADOC_AUTOBRIEF = YES
EXTRACT_ALL = YES
HIDE_UNDOC_MEMBERS = NO
ENABLE_PREPROCESSING = YES
QUIET = YES
WARNINGS = NO
"""


def public_headers(root: Path) -> list[str]:
    """The headers that shardwise/shardwise.h includes, and those that it leaves out: modules and ranks as threads."""
    text = (root / "shardwise" / "shardwise.h").read_text()
    return [
        header
        for header in (
            *re.findall(r'#include "(.*?)"', text),
            "shardwise/modules.h",
            "threads/thread_world.h",
            "wrappers/parallel_modules.h",
        )
        if not is_hidden(root, header)
    ]


def is_hidden(root: Path, header: str) -> bool:
    """True for one of an inner room whose name a header of shardwise/ has, too: Breathe knows files by their last names alone."""
    return not header.startswith("shardwise/") and (root / "shardwise" / Path(header).name).exists()


def run_doxygen(root: Path) -> Path:
    """The folder of Doxygen's XML of the public headers and what they include."""
    output = root / "build" / "docs" / "doxygen"
    output.mkdir(parents=True, exist_ok=True)
    headers = sorted(header for header in reached_headers(root) if not is_hidden(root, header))
    doxyfile = output / "Doxyfile"
    doxyfile.write_text(DOXYFILE.format(output=output, root=root, headers=" ".join(str(root / h) for h in headers)))
    with (output / "log").open("w") as log:
        subprocess.run(["doxygen", str(doxyfile)], check=True, stderr=log)
    return output / "xml"


def reached_headers(root: Path) -> set[str]:
    """The public headers and every header of ours that they include."""
    reached: set[str] = set()
    waiting = public_headers(root)
    while waiting:
        header = waiting.pop()
        if header not in reached and (root / header).exists():
            reached.add(header)
            waiting += re.findall(r'^#include "(.*?)"', (root / header).read_text(), re.MULTILINE)
    return reached


def purpose(root: Path, header: str) -> str:
    """The first comment line of a header, without its name."""
    first = (root / header).read_text().splitlines()[0]
    return first.partition(": ")[2] or first.removeprefix("// ")


def write_pages(root: Path, has_doxygen: bool) -> None:
    folder = root / "docs" / "_generated"
    folder.mkdir(exist_ok=True)
    for name, file in FROM_ROOT.items():
        if not (root / file).exists():
            continue
        write(folder / f"{name}.md", f"```{{include}} ../../{file}\n:relative-docs: docs/\n:relative-images:\n```\n")
    write(folder / "cpp.txt", cpp_page(root, has_doxygen))
    write(folder / "errors.txt", printed_by(root / "tests" / "python" / "error_catalogue.py"))
    write(folder / "error_sites.txt", printed_by(root / "tests" / "python" / "error_sites.py", "--table"))


def write(path: Path, text: str) -> None:
    """Sphinx reads again what has changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def cpp_page(root: Path, has_doxygen: bool) -> str:
    text = ""
    for header in public_headers(root):
        text += f"## {header}\n\n{purpose(root, header)}\n\n"
        if has_doxygen:
            text += f"```{{doxygenfile}} {header.split('/')[-1]}\n:sections: innernamespace innerclass func enum typedef public-type public-func public-static-func public-attrib user-defined\n```\n\n"
    if not has_doxygen:
        text += "```{note}\nThis documentation was built without Doxygen, so the headers' contents are not listed here.\n```\n"
    return text


def printed_by(program: Path, *options: str) -> str:
    finished = subprocess.run([sys.executable, str(program), *options], capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{program} failed:\n{finished.stderr}")
    return finished.stdout


def without_missing_pages(app: Any, page: str, source: list[str]) -> None:
    """Takes the entries out of tables of contents ("traces*") for which there is no page in this tree."""
    folder = Path(app.srcdir, page).parent
    source[0] = re.sub(
        r"^[\w/]+\*\n", lambda entry: entry[0] if any(folder.glob(entry[0][:-1])) else "", source[0], flags=re.MULTILINE
    )


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", without_missing_pages)
    return {"parallel_read_safe": True}
