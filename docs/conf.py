"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import zlib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

import weft

DOCS = Path(__file__).parent

project = "weft"
author = "The weft developers"
project_copyright = "the weft developers, Apache-2.0"
release = version = weft.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Tutorials are run by the build, and again only when they have changed.
nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_show_tb = True
nb_execution_in_temp = True
# What tables of commands are made for: as much as a page shows.
os.environ.setdefault("JUPYTER_COLUMNS", "84")

# Docstrings put names of the code between single backticks.
default_role = "py:obj"
add_module_names = False
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"Array": "numpy.ndarray", "npt.DTypeLike": "numpy.dtype"}
maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]

html_theme = "furo"
html_title = "weft"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"


def _inventories(app: Sphinx, config: Config) -> None:
    """Say where other libraries document the names of `inventories.txt`.

    Sphinx would fetch a list of each library's names; these lists are written here, so that the
    site is built without a network.
    """
    folder = Path(app.doctreedir)
    folder.mkdir(parents=True, exist_ok=True)
    for block in (DOCS / "inventories.txt").read_text(encoding="utf-8").strip().split("\n\n"):
        heading, *entries = block.splitlines()
        library, address = heading.split()
        lines = []
        for entry in entries:
            name, kind, page = entry.split()
            lines.append(f"{name} py:{kind} 1 {page if '#' in page else page + '#$'} -\n")
        path = folder / f"{library}.inv"
        head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
        config.intersphinx_mapping[library] = (address, str(path))


def _skip(
    app: Sphinx, kind: str, name: str, value: object, skip: bool, options: object
) -> bool | None:
    """Whether a member is left out; None leaves that to Sphinx."""
    if kind == "module":
        # Names that the front door and a room share are documented once, at the front door.
        return True if _is_elsewhere(app, name, value) else None
    # What a dataclass has is in its docstring; what torch calls is worth its signature.
    described = isinstance(value, property) or (inspect.isroutine(value) and value.__doc__)
    return None if described or name == "forward" else True


def _is_elsewhere(app: Sphinx, name: str, value: object) -> bool:
    at_front_door = app.env.current_document.docname == "reference/weft"
    return not at_front_door and name in weft.__all__ and getattr(weft, name) is value


_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")


def _indented(lines: list[str]) -> list[str]:
    """The lines with indented blocks in the place of fenced ones."""
    found: list[str] = []
    fenced = False
    for line in lines:
        if line.strip() == "```":
            fenced = not fenced
            found.append("")
        else:
            found.append("    " + line if fenced else line)
    return found


def _as_rst(
    app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """What docstrings say in the manner of Markdown, in that of reStructuredText."""
    text = _indented(lines)
    # Napoleon would take what stands before a colon for a type.
    lines[:] = ["..", ""] if kind in {"attribute", "data", "property"} else []
    above, code = 0, False  # indent of the last line of prose; whether code follows it
    for index, line in enumerate(text):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or (code and indent >= above + 4):
            lines.append(line)
            continue
        code = index > 0 and not text[index - 1].strip() and indent >= above + 4
        if code:
            lines += [" " * above + "::", "", line]
            continue
        above, parts = indent, _CODE.split(line)
        parts[::2] = [re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
        lines.append("".join(parts))
    if kind == "module":
        names = getattr(value, "__all__", ())
        shared = [member for member in names if _is_elsewhere(app, member, getattr(value, member))]
        if shared:
            links = ", ".join(f":py:obj:`weft.{member}`" for member in shared)
            lines += ["", f"Described at the :doc:`front door <weft>`: {links}.", ""]


def _signature(
    app: Sphinx, kind: str, name: str, value: object, options: object, *parts: str | None
) -> tuple[str | None, ...]:
    """Inside other types an alias of `autodoc_type_aliases` is written as Sphinx holds it."""
    return tuple(
        part and re.sub(r"TypeAliasForwardRef\('([\w.]+)'\)", r"\1", part) for part in parts
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    # Before intersphinx reads its setting, at 800.
    app.connect("config-inited", _inventories)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    # Before napoleon reads the sections of a docstring.
    app.connect("autodoc-process-docstring", _as_rst, priority=100)
