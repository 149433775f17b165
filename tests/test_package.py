"""What holds for the package as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(weft.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Run by path or by `python -m`, never imported for a name.
SCRIPTS = {"__main__.py", *(path.name for path in (PACKAGE / "bench" / "contestants").glob("*.py"))}
MAX_LINES = 600


def test_import_is_light() -> None:
    script = (
        "import sys, weft\nprint(sorted({'torch', 'numpy', 'numba', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_version_is_written_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", weft.__version__)
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'path = "src/weft/__init__.py"' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)


def test_the_citation_has_the_same_version() -> None:
    citation = ROOT / "CITATION.cff"
    if not citation.exists():
        pytest.skip("no CITATION.cff here")
    found = re.search(r"^version: *\"?([^\"\s]+)", citation.read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == weft.__version__


def test_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    if path.name not in SCRIPTS and path != PACKAGE / "__init__.py":
        assigned = [
            ast.unparse(t) for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
        ]
        assert "__all__" in assigned
