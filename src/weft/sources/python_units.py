"""One Python file cut into units: every function, and the module's body, with tokens and scopes."""

from __future__ import annotations

import ast
import io
import re
import symtable
import sys
import token
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.sources.python_fstrings import place_parts, split_tokens

EXTRACTION = 3
"""Raise it with every change of the graphs of a file: tables in the cache are named after it."""

Function = (ast.FunctionDef, ast.AsyncFunctionDef)

# Before 3.12 an f-string is one token and what is inside it has no reliable position.
_WHOLE_F_STRINGS = sys.version_info < (3, 12)

_UNSEEN = {
    token.NEWLINE,
    token.INDENT,
    token.DEDENT,
    token.ENDMARKER,
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.ENCODING,
}
# Fields that say nothing that the tokens do not say.
_SILENT = {"ctx", "op", "ops"}
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
_NAMELESS: dict[type[ast.AST], str] = {
    ast.Lambda: "lambda",
    ast.ListComp: "listcomp",
    ast.SetComp: "setcomp",
    ast.DictComp: "dictcomp",
    ast.GeneratorExp: "genexpr",
}
_OPENERS = (ast.ClassDef, *Function, *_NAMELESS)
_NEWLINES = re.compile("\r\n?")


class Unusable(Exception):
    """A file that no graphs can be made of; its text is the reason, the same for many files."""


def read_source(path: Path) -> str:
    """The text of a Python file, decoded as PEP 263 says.

    Raises:
        Unusable: it cannot be opened, or is not written in the encoding that it names.
    """
    try:
        with tokenize.open(path) as file:
            return file.read()
    except OSError:
        raise Unusable("cannot be read") from None
    except (SyntaxError, UnicodeError, LookupError):
        raise Unusable("encoding") from None


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes directly below in the order of the grammar, without contexts and operators."""
    kind = type(node)
    fields = _FIELDS.get(kind)
    if fields is None:
        fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _SILENT)
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value


class Scope:
    """A block of names: a module, class, function, lambda or comprehension.

    Attributes:
        block: what the compiler knows about its names.
        parent: the scope around it.
        node: its node in the syntax tree.
        is_class: its names are not seen by the functions in it.
        is_module: its names are global.
        is_expression: a lambda or a comprehension, whose names are bound wherever one is inside.
    """

    def __init__(self, block: symtable.SymbolTable, parent: Scope | None, node: ast.AST) -> None:
        self.block, self.parent, self.node = block, parent, node
        self.is_class = isinstance(node, ast.ClassDef)
        self.is_module = isinstance(node, ast.Module)
        self.is_expression = not isinstance(node, (ast.Module, ast.ClassDef, *Function))
        self._kinds: dict[str, bool | None] = {}
        self._opened: dict[ast.AST, Scope | None] = {}

    def binds(self, name: str) -> bool | None:
        """True: a variable of this scope. False: bound here to something else. None: not here.

        Names of functions, classes and imported things are no variables.
        """
        if name not in self._kinds:
            symbol, kind = self._symbol(name), None
            if symbol is not None and symbol.is_local():
                assigned = symbol.is_assigned() and not (
                    symbol.is_namespace() or symbol.is_imported()
                )
                kind = symbol.is_parameter() or assigned
            self._kinds[name] = kind
        return self._kinds[name]

    def _symbol(self, name: str) -> symtable.Symbol | None:
        try:
            return self.block.lookup(name)
        except KeyError:
            return None

    def owner(self, name: str, *, module: bool) -> Scope | None:
        """The scope whose variable `name` is, seen from here; globals only for `module`."""
        scope: Scope | None = self
        is_global = False
        while scope is not None and (module or not scope.is_module):
            if scope.is_module or not (is_global or (scope is not self and scope.is_class)):
                binds = scope.binds(name)
                if binds is not None:
                    return scope if binds else None
                symbol = scope._symbol(name)
                is_global = symbol is not None and symbol.is_declared_global()
            scope = scope.parent
        return None

    def written_inside(self) -> set[str]:
        """Names of this scope that functions and classes in it write as global or nonlocal."""
        found: set[str] = set()
        waiting = [(block, True) for block in self.block.get_children()]
        while waiting:
            block, directly = waiting.pop()
            # What a comprehension writes it writes where it stands; its iterable is called .0.
            directly = directly and ".0" in block.get_identifiers()
            for symbol in () if directly else block.get_symbols():
                there = symbol.is_declared_global() if self.is_module else symbol.is_nonlocal()
                if there and symbol.is_assigned():
                    found.add(symbol.get_name())
            waiting += [(child, directly) for child in block.get_children()]
        return found

    def inner(self, node: ast.AST) -> Scope | None:
        """The scope that a node directly inside this one opens, or None if it opens none."""
        if not isinstance(node, _OPENERS):
            return None
        if node not in self._opened:
            # The compiler opens what is evaluated outside a scope before the scope itself; that
            # tells two on one line apart.
            for expression in _evaluated_outside(node):
                self._open_all(expression)
            opener: Any = node
            name = _NAMELESS.get(type(node)) or opener.name
            # In f-strings the compiler knows another line than the text.
            line = getattr(node, "symbol_line", None) or opener.lineno
            waiting = self._waiting.get((name, line))
            self._opened[node] = Scope(waiting.pop(0), self, node) if waiting else None
        return self._opened[node]

    def _open_all(self, expression: ast.AST) -> None:
        waiting = [expression]
        while waiting:
            node = waiting.pop()
            if isinstance(node, _OPENERS):
                self.inner(node)
            else:
                waiting += reversed(list(children(node)))

    @cached_property
    def _waiting(self) -> dict[tuple[str, int], list[symtable.SymbolTable]]:
        """The blocks inside that no scope was made for yet, by name and line."""
        waiting: dict[tuple[str, int], list[symtable.SymbolTable]] = {}
        for block in _blocks(self.block):
            key = (block.get_name().strip("<>"), block.get_lineno())
            waiting.setdefault(key, []).append(block)
        return waiting


def _evaluated_outside(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return [node.generators[0].iter]
    return []


def _blocks(block: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """The blocks inside; those of type parameters and annotations are looked through."""
    for child in block.get_children():
        if str(child.get_type()) in ("function", "class"):
            yield child
        else:
            yield from _blocks(child)


class Unit:
    """A function without the functions in it, or a module's body without its functions.

    Attributes:
        node: its node in the syntax tree.
        scope: its names.
        first: its first token.
        stop: the token after its last.
        holes: (first, stop) of the functions in it, in order.
        is_module: it is the module's body.
    """

    def __init__(self, node: ast.AST, scope: Scope, first: int, stop: int) -> None:
        self.node, self.scope, self.first, self.stop = node, scope, first, stop
        self.holes: list[tuple[int, int]] = []
        self.is_module = scope.is_module

    def tokens(self) -> Iterator[int]:
        """Numbers of its tokens."""
        at = self.first
        for first, stop in self.holes:
            yield from range(at, first)
            at = stop
        yield from range(at, self.stop)

    def lines(self, program: Program) -> int:
        """Lines of its text, without the functions in it."""
        own = program.num_lines if self.is_module else program.lines_of(self.first, self.stop)
        return own - sum(program.lines_of(*hole) for hole in self.holes)


class Program:
    """A parsed file.

    Attributes:
        tokens: all tokens but comments, line ends and indentation.
        starts: where each begins: (line from 1, column in characters from 0).
        at: the number of the token that begins at a place.
        num_lines: lines of the text.
        units: all functions and the module, as they begin in the text.
        functions: the functions and classes by (scope's node, name), the first of a name.
    """

    def __init__(self, source: str) -> None:
        """Parse `source`.

        Raises:
            Unusable: it is no Python of this version, or nested too deeply for it.
        """
        source = _NEWLINES.sub("\n", source)
        if "\0" in source:
            raise Unusable("null bytes")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
                block = symtable.symtable(source, "<source>", "exec")
                found = tokenize.generate_tokens(io.StringIO(source).readline)
                self.tokens = [t for t in found if t.type not in _UNSEEN]
                if _WHOLE_F_STRINGS:
                    self.tokens, strings = split_tokens(self.tokens)
                    place_parts(tree, strings, source.split("\n"))
        except (RecursionError, MemoryError):
            raise Unusable("nested too deeply") from None
        except (SyntaxError, ValueError, tokenize.TokenError):
            raise Unusable("syntax error") from None
        self._lines = None if source.isascii() else source.split("\n")
        self._characters: dict[int, list[int]] = {}
        self.num_lines = source.count("\n") + (not source.endswith("\n"))
        self.starts = [t.start for t in self.tokens]
        self.at = {start: i for i, start in enumerate(self.starts)}
        self.functions: dict[tuple[ast.AST, str], ast.AST] = {}
        self.units: list[Unit] = []
        self._find_units(tree, Scope(block, None, tree))

    def _find_units(self, tree: ast.Module, scope: Scope) -> None:
        module = Unit(tree, scope, 0, len(self.tokens))
        self.units.append(module)
        waiting: list[tuple[ast.AST, Scope, Unit]] = [
            (node, scope, module) for node in reversed(tree.body)
        ]
        while waiting:
            node, scope, unit = waiting.pop()
            below = [n for n in children(node) if isinstance(n, _BLOCKS)]
            if isinstance(node, (ast.ClassDef, *Function)):
                self.functions.setdefault((scope.node, node.name), node)
                inner = scope.inner(node)
                if inner is None:
                    continue
                scope = inner
                if isinstance(node, Function):
                    first, stop = self._function_tokens(node)
                    unit.holes.append((first, stop))
                    unit = Unit(node, scope, first, stop)
                    self.units.append(unit)
            waiting += [(n, scope, unit) for n in reversed(below)]

    def _function_tokens(self, node: Any) -> tuple[int, int]:
        first, stop = self.span(node)
        if node.decorator_list:
            first = self.span(node.decorator_list[0])[0]
            while self.tokens[first].string != "@":
                first -= 1
        return first, stop

    def lines_of(self, first: int, stop: int) -> int:
        """Lines from the token `first` to the one before `stop`."""
        return self.tokens[stop - 1].end[0] - self.starts[first][0] + 1

    def start(self, node: Any) -> tuple[int, int]:
        """Where a node begins, in characters."""
        return node.lineno, self._column(node.lineno, node.col_offset)

    def end(self, node: Any) -> tuple[int, int]:
        """Where a node ends, in characters."""
        return node.end_lineno, self._column(node.end_lineno, node.end_col_offset)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The tokens of a node: first, and the one after the last."""
        return bisect_left(self.starts, self.start(node)), bisect_left(self.starts, self.end(node))

    def _column(self, line: int, offset: int) -> int:
        # The syntax tree counts bytes of UTF-8.
        if self._lines is None or self._lines[line - 1].isascii():
            return offset
        if line not in self._characters:
            text = self._lines[line - 1]
            sizes = [len(character.encode("utf-8", "surrogatepass")) for character in text]
            of_byte = [i for i, size in enumerate(sizes) for _ in range(size)]
            self._characters[line] = [*of_byte, len(text)]
        return self._characters[line][offset]


_BLOCKS: tuple[type[ast.AST], ...] = (ast.stmt, ast.ExceptHandler, ast.match_case)
