"""Packages that list their public names once and import each of them on first use (PEP 562)."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(package: str) -> list[str]:
    """Make a package import its public names on first use; returns their list, for `__all__`.

    The names stand in the package's own `__init__.py`, where type checkers see them:

        if TYPE_CHECKING:
            from weft.graphs.batch import GraphBatch as GraphBatch
        else:
            __all__ = lazy_names(__name__)

    `from package.module import name` then imports that module and what it needs, and none of the
    package's other modules. A public name wins over a submodule of the same name, whichever of
    the two is imported first; `from package.name import ...` still finds the submodule.
    """
    module = sys.modules[package]
    module.__dict__["_modules_of_names"] = _names_for_type_checkers(module)
    module.__class__ = _LazyPackage
    return sorted(module.__dict__["_modules_of_names"])


# What a package needs to list its names, and no user of it.
_HOW_IT_IS_DONE = {"TYPE_CHECKING", "_modules_of_names", "annotations", "lazy_names"}


class _LazyPackage(ModuleType):
    _modules_of_names: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules_of_names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._modules_of_names[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule also sets it as an attribute of its package.
        if not (name in self._modules_of_names and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._modules_of_names} - _HOW_IT_IS_DONE)


def _names_for_type_checkers(module: ModuleType) -> dict[str, str]:
    """The modules of the names that `if TYPE_CHECKING:` imports in a package's source."""
    loader = module.__spec__.loader if module.__spec__ else None
    source = getattr(loader, "get_source", lambda name: None)(module.__name__)
    if source is None:
        raise ImportError(f"{module.__name__} needs its source file to find its public names")
    return {
        alias.name: statement.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
