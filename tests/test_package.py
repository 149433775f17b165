"""What holds for the package as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
import weft_lab

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(weft.__file__).parent
LAB = Path(weft_lab.__file__).parent
MODULES = sorted([*PACKAGE.rglob("*.py"), *LAB.rglob("*.py")])
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
    assert (LAB / "py.typed").is_file()


def test_every_module() -> None:
    for path in MODULES:
        text = path.read_text()
        assert len(text.splitlines()) <= MAX_LINES, path
        tree = ast.parse(text)
        assert ast.get_docstring(tree), path
        names = [ast.unparse(t) for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
        # Inside a room a leading underscore says what is private; its door lists what it offers.
        assert "__all__" not in names or path.name == "__init__.py", path
