"""Packages that import their public names on first use."""

from __future__ import annotations

import importlib
import py_compile
import sys
from pathlib import Path
from types import ModuleType

import pytest

import weft

DOOR = '''
"""A package."""

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from {name}.plan import Plan as Plan
    from {name}.plan import plan as plan
else:
    __all__ = lazy_names(__name__)

version = 1
'''
INNER = """
class Plan: ...

def plan(): return "called"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A package whose module `plan` has a function `plan`; a name of its own for each test."""
    name = f"lazy_{request.node.name}".replace("[", "_").replace("]", "")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(DOOR.format(name=name))
    (tmp_path / name / "plan.py").write_text(INNER)
    (tmp_path / name / "other.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_names_are_imported_on_first_use(package: str) -> None:
    door = importlib.import_module(package)
    assert f"{package}.plan" not in sys.modules
    assert door.Plan.__module__ == f"{package}.plan"
    assert "Plan" in vars(door)
    assert door.version == 1


def test_all_and_dir_show_the_names(package: str) -> None:
    door = importlib.import_module(package)
    assert door.__all__ == ["Plan", "plan"]
    assert {"Plan", "plan", "version", "__name__"} <= set(dir(door))
    assert [name for name in dir(door) if not name.startswith("__")] == ["Plan", "plan", "version"]
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)
    assert {"Plan", "plan"} <= set(names)


@pytest.mark.parametrize("first", ["submodule", "name"])
def test_a_public_name_wins_over_a_submodule(package: str, first: str) -> None:
    door = importlib.import_module(package)
    if first == "name":
        assert door.plan() == "called"
    inner = importlib.import_module(f"{package}.plan")
    assert inner.__name__ == f"{package}.plan"
    assert door.plan() == "called"
    names: dict[str, object] = {}
    exec(f"from {package} import plan\nfrom {package}.plan import Plan", names)
    assert names["plan"] is inner.plan
    assert names["Plan"] is inner.Plan


def test_other_submodules_are_attributes(package: str) -> None:
    door = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'other'"):
        _ = door.other
    importlib.import_module(f"{package}.other")
    assert door.other.value == 2


def test_names_can_be_replaced(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    door = importlib.import_module(package)
    with monkeypatch.context() as patched:
        patched.setattr(door, "plan", len)
        assert door.plan is len
    assert door.plan() == "called"


def test_a_package_without_its_source_says_so(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / package / "__init__.py"
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()
    with pytest.raises(ImportError, match="needs its source file"):
        importlib.import_module(package)


def test_rooms_of_weft_prefer_their_names() -> None:
    """`weft.sparsify.accelerate` and others are functions, and modules of the same name."""
    for folder in Path(weft.__file__).parent.iterdir():
        modules = {path.stem for path in folder.glob("*.py")}
        if "__init__" not in modules:
            continue
        room = importlib.import_module(f"weft.{folder.name}")
        for name in modules & set(getattr(room, "__all__", ())):
            importlib.import_module(f"{room.__name__}.{name}")
            assert not isinstance(getattr(room, name), ModuleType), f"{room.__name__}.{name}"
