"""f-strings before Python 3.12, cut into the tokens that later versions give.

There an f-string is one token, and what is inside has no reliable position. Here its text is read
again: literal parts and expressions become tokens of their own, and the parts of the syntax tree
get the places where their tokens are.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from tokenize import NAME, OP, STRING, TokenInfo
from typing import Any

_Place = tuple[int, int]
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Unreadable(Exception):
    """An f-string whose parts cannot be told apart."""


@dataclass
class FString:
    """A literal: from `start` to `end`, and the (text, place) of the expressions in it."""

    start: _Place
    end: _Place
    expressions: list[tuple[str, _Place]] = field(default_factory=list)


def split_tokens(tokens: list[TokenInfo]) -> tuple[list[TokenInfo], list[FString]]:
    """The tokens with those of f-strings cut up, and the f-strings; one that is unreadable stays.

    f-strings inside another come after it.
    """
    found: list[TokenInfo] = []
    strings: list[FString] = []
    for each in tokens:
        if each.type != STRING or "f" not in _prefix(each.string).lower():
            found.append(each)
            continue
        reader = _Reader(each)
        try:
            parts, inside = reader.read()
        except (Unreadable, tokenize.TokenError, SyntaxError, ValueError, IndexError):
            found.append(each)
            continue
        found += parts
        strings += inside
    return found, strings


def _prefix(text: str) -> str:
    return text[: min(text.find(quote) for quote in "'\"" if quote in text)]


class _Reader:
    """Reads one literal."""

    def __init__(self, token: TokenInfo) -> None:
        self.token, self.text = token, token.string
        self.raw = "r" in _prefix(self.text).lower()
        self.breaks = [i for i, character in enumerate(self.text) if character == "\n"]
        self.tokens: list[TokenInfo] = []
        self.string = FString(token.start, token.end)
        self.inside: list[FString] = []

    def read(self) -> tuple[list[TokenInfo], list[FString]]:
        """Its tokens and f-strings."""
        first = len(_prefix(self.text))
        quote = 3 if self.text[first : first + 3] in ('"""', "'''") else 1
        self._add(STRING, 0, first + quote)
        if self._literals(first + quote, len(self.text) - quote) != len(self.text) - quote:
            raise Unreadable
        self._add(STRING, len(self.text) - quote, len(self.text))
        return self.tokens, [self.string, *self.inside]

    def _place(self, at: int) -> _Place:
        line, column = self.token.start
        before = [i for i in self.breaks if i < at]
        return (line + len(before), at - before[-1] - 1) if before else (line, column + at)

    def _add(self, kind: int, first: int, stop: int) -> None:
        if first < stop:
            places = self._place(first), self._place(stop)
            self.tokens.append(TokenInfo(kind, self.text[first:stop], *places, self.token.line))

    def _literals(self, at: int, stop: int, *, in_format: bool = False) -> int:
        """Read text and expressions up to `stop`, or the end of a format; where that is."""
        first = at
        while at < stop:
            character = self.text[at]
            if not in_format and self.text[at : at + 2] in ("{{", "}}"):
                at += 2
            elif character == "\\" and not self.raw:
                named = self.text.startswith("\\N{", at)
                at = self.text.index("}", at) + 1 if named else at + 2
            elif character == "{":
                self._add(STRING, first, at)
                first = at = self._expression(at, stop)
            elif character == "}":
                break
            else:
                at += 1
        self._add(STRING, first, at)
        return at

    def _expression(self, opening: int, stop: int) -> int:
        """Read from a brace to behind the one that closes it."""
        self._add(OP, opening, opening + 1)
        first = opening + 1
        at = end = self._end_of(first, stop)
        if self.text[at] == "=":
            self._inner(first, end)
            self._add(OP, at, at + 1)
            at += 1
            while self.text[at].isspace():
                at += 1
        else:
            self._inner(first, end)
        if self.text[at] == "!":
            self._add(OP, at, at + 1)
            self._add(NAME, at + 1, at + 2)
            at += 2
        if self.text[at] == ":":
            self._add(OP, at, at + 1)
            at = self._literals(at + 1, stop, in_format=True)
        if at >= stop or self.text[at] != "}":
            raise Unreadable
        self._add(OP, at, at + 1)
        return at + 1

    def _end_of(self, at: int, stop: int) -> int:
        """Where the expression ends: at its `=`, conversion, format or closing brace."""
        open_brackets: list[str] = []
        quote = ""
        while at < stop:
            text, character = self.text, self.text[at]
            if quote:
                if text.startswith(quote, at):
                    at += len(quote) - 1
                    quote = ""
            elif character in "'\"":
                quote = text[at : at + 3] if text[at : at + 3] == 3 * character else character
                at += len(quote) - 1
            elif character in _CLOSING:
                open_brackets.append(_CLOSING[character])
            elif open_brackets:
                if character == open_brackets[-1]:
                    open_brackets.pop()
            elif character in "}:" or (character == "!" and text[at + 1] != "="):
                return at
            elif character == "=" and text[at + 1 :].lstrip()[:1] in ("}", "!", ":"):
                # The = of f"{value = }"; those of comparisons have an operand behind them.
                return at
            at += 1
        raise Unreadable

    def _inner(self, first: int, stop: int) -> None:
        """The tokens of an expression, with the f-strings in it cut up in turn."""
        text, place = self.text[first:stop], self._place(first)
        self.string.expressions.append((text, place))
        line, column = place
        inner = []
        for each in tokenize.generate_tokens(io.StringIO(f"({text})").readline):
            # The bracket stands before the first line, which begins in the middle of another.
            start, end = (
                (line + row - 1, col + (column - 1 if row == 1 else 0))
                for row, col in (each.start, each.end)
            )
            if each.type not in (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER):
                inner.append(TokenInfo(each.type, each.string, start, end, self.token.line))
        tokens, strings = split_tokens(inner[1:-1])
        self.tokens += tokens
        self.inside += strings


def place_parts(tree: ast.AST, strings: list[FString], lines: list[str]) -> None:
    """Give the parts of the f-strings in `tree` their places; those without lose what they have.

    The line that the compiler knows of a lambda or comprehension stays as its `symbol_line`.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            _place_string(node, strings, lines)
            waiting += _formatted(node)
        else:
            waiting += ast.iter_child_nodes(node)


def _place_string(node: ast.JoinedStr, strings: list[FString], lines: list[str]) -> None:
    values = list(_formatted(node))
    places: list[tuple[str, _Place]] = []
    if hasattr(node, "lineno"):
        first, last = _of(node, lines)
        end: _Place = (0, 0)
        for string in strings:
            if first <= string.start and string.end <= last and string.start >= end:
                places += string.expressions
                end = string.end
    below: Any
    for below in ast.walk(node):
        if below is not node and hasattr(below, "lineno"):
            below.symbol_line = getattr(below, "symbol_line", below.lineno)
            del below.lineno
    if len(places) != len(values):
        return
    old: Any
    new: Any
    for value, (text, (line, column)) in zip(values, places, strict=True):
        try:
            again = ast.parse(f"({text})", mode="eval").body
        except SyntaxError:
            continue
        before = len(lines[line - 1][:column].encode("utf-8", "surrogatepass")) - 1
        for old, new in zip(ast.walk(value), ast.walk(again), strict=False):
            if type(old) is not type(new) or not hasattr(new, "lineno"):
                continue
            for name, row in (("", new.lineno), ("end_", new.end_lineno)):
                offset = getattr(new, f"{name}col_offset") + (before if row == 1 else 0)
                setattr(old, f"{name}lineno", line + row - 1)
                setattr(old, f"{name}col_offset", offset)


def _formatted(node: ast.JoinedStr) -> Iterator[ast.expr]:
    """The expressions in the order of the text, those of formats too, not of strings inside."""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            yield part.value
            if isinstance(part.format_spec, ast.JoinedStr):
                yield from _formatted(part.format_spec)


def _of(node: ast.JoinedStr, lines: list[str]) -> tuple[_Place, _Place]:
    """Where it begins and ends, in characters."""

    def characters(row: int, offset: int) -> _Place:
        before = lines[row - 1].encode("utf-8", "surrogatepass")[:offset]
        return row, len(before.decode("utf-8", "surrogatepass"))

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (
        characters(node.lineno, node.col_offset),
        characters(node.end_lineno, node.end_col_offset),
    )
