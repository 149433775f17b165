"""What holds for the package as a whole."""

from __future__ import annotations

import ast
import importlib
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


CONFIGS = sorted(
    path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
    for path in PACKAGE.glob("*/**/config.py")
)


def heavy_imports(module: str) -> list[str]:
    """Which of the libraries that take long to import a fresh process has after this module."""
    heavy = ["ase", "matplotlib", "numba", "rich", "scipy", "torch"]
    script = f"import sys, {module}\nprint(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    return done.stdout.split()


def test_import_is_light() -> None:
    assert heavy_imports("weft") == []


@pytest.mark.parametrize(
    "recipe",
    sorted(
        path.name for path in (PACKAGE / "recipes").iterdir() if (path / "__init__.py").exists()
    ),
)
def test_every_recipe_has_a_config(recipe: str) -> None:
    assert f"weft.recipes.{recipe}.config" in CONFIGS


@pytest.mark.parametrize("module", CONFIGS)
def test_configs_are_light(module: str) -> None:
    """`weft train molecules --help` prints options without waiting for torch."""
    assert heavy_imports(module) == []


def test_every_room_lists_its_names() -> None:
    for room in PACKAGE.glob("*/__init__.py"):
        door = importlib.import_module(f"weft.{room.parent.name}")
        for name in getattr(door, "__all__", ()):
            assert getattr(door, name) is not None, f"{room.parent.name}.{name}"


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


def test_no_file_has_the_marks_of_an_unfinished_merge():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.txt")]
    assert files
    marked = [file.name for file in files if re.search("^(<{7} |>{7} )", file.read_text(), re.M)]
    assert marked == []
