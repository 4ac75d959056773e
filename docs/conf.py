"""Sphinx's configuration. scripts/docs builds; the pages are Markdown, and read on GitHub as well."""

import shutil
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_ext"))

import root_pages  # noqa: E402

import shardwise  # noqa: E402

project = "Shardwise"
author = "the authors of Shardwise"
settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
release = getattr(shardwise, "__version__", settings.get("version", ""))

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "markdown_docstrings",
    "root_pages",
]

exclude_patterns = ["_build", "_ext"]
# The namespace is shown once per header.
suppress_warnings = ["duplicate_declaration.cpp"]

html_theme = "furo"
html_title = f"Shardwise {release}".strip()
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

linkcheck_timeout = 20
linkcheck_retries = 2

# The C++ reference is Doxygen's. Without it the page says so.
has_doxygen = shutil.which("doxygen") is not None
if has_doxygen:
    extensions += ["breathe"]
    breathe_default_project = "shardwise"
    breathe_projects = {"shardwise": str(root_pages.run_doxygen(ROOT))}
    breathe_default_members = ("members",)
root_pages.write_pages(ROOT, has_doxygen)
