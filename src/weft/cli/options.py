"""Options of a command from its dataclass: what is used often first, the rest under "more".

tyro parses; here a command's dataclass is turned into the flat form that reads well on a screen,
and what was parsed is turned back. A nested configuration in the field `config` has its options
without a prefix. An option that is not set has no `{None}` in its help, and a part that may be
missing, such as a budget, is one option with several values instead of a subcommand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import docstring_parser
import tyro
from rich.console import Console

T = TypeVar("T")

CONFIG, MORE = "config", "more"
_NOTHING = "none"
"""The word for no value, where an option has one by default."""


def parse_options(command: type[T], words: Sequence[str], *, prog: str) -> T:
    """An instance of the dataclass `command`, as `words` say."""
    parsed = tyro.cli(shown_options(command), prog=prog, args=list(words))
    return _rebuilt(command, parsed)


def shown_options(command: type[Any]) -> type[Any]:
    """A dataclass with the options of `command` as they are to be shown.

    A command may have the attribute `COMMON`: the names of the options that come first. Without
    it all do.
    """
    common = getattr(command, "COMMON", None)
    first: list[Any] = []
    more: list[Any] = []
    parts: list[Any] = []
    for owner, field, default in _fields(command):
        if _is_part(default):
            kind = parts
        else:
            kind = first if common is None or field.name in common else more
        kind.append(_shown(owner, field, default))
    if common is not None:
        first.sort(key=lambda each: common.index(each[0]))
    if more:
        unprefixed = tyro.conf.arg(prefix_name=False)
        rest = _dataclass(
            "More", [(name, Annotated[hint, unprefixed], f) for name, hint, f in more]
        )
        group = Annotated[rest, unprefixed]  # type: ignore[valid-type]
        first.append((MORE, group, dataclasses.field(default_factory=rest)))
    found = _dataclass(command.__name__, [*first, *parts])
    found.__doc__ = command.__doc__
    return found


def _fields(command: type[Any]) -> list[tuple[type[Any], dataclasses.Field[Any], Any]]:
    """The fields of a command with their class and default; a configuration's in their place."""
    found: list[tuple[type[Any], dataclasses.Field[Any], Any]] = []
    for field in dataclasses.fields(command):
        default = _default(field)
        if field.name == CONFIG:
            own = [each for each in dataclasses.fields(default) if each.init]
            found += [(type(default), each, getattr(default, each.name)) for each in own]
        else:
            found.append((command, field, default))
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_part(default: Any) -> bool:
    return dataclasses.is_dataclass(default) and not isinstance(default, type)


def _dataclass(name: str, fields: list[Any]) -> type[Any]:
    return dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)


def _shown(owner: type[Any], field: dataclasses.Field[Any], default: Any) -> tuple[str, Any, Any]:
    """A field for `make_dataclass`: its type with the help and without a visible None.

    A part is a group of options with a prefix, such as --schedule.shape.
    """
    if _is_part(default):
        kind = type(default)
        inner = [
            _shown(kind, each, getattr(default, each.name)) for each in dataclasses.fields(kind)
        ]
        group = _dataclass(kind.__name__, inner)
        heading = tyro.conf.arg(help=_sentence(_help(owner, field.name)))
        return field.name, Annotated[group, heading], dataclasses.field(default_factory=group)
    hint = typing.get_type_hints(owner, include_extras=True)[field.name]
    told: dict[str, Any] = {"help": _sentence(_help(owner, field.name), hint)}
    markers: list[Any] = []
    if part := _optional_part(hint):
        # Of a part that may be missing all values together, in the order of its fields.
        names = [each.name for each in dataclasses.fields(part)]
        hints = typing.get_type_hints(part)
        hint = tuple[tuple(hints[name] for name in names)] | None  # type: ignore[misc]
        told["metavar"] = " ".join(name.upper() for name in names)
    if hint == str | tuple[str, ...]:
        told["metavar"] = "STR [STR ...]"
    if default is None:
        markers.append(tyro.conf.DisallowNone)
        told["help_behavior_hint"] = ""
        if bool in typing.get_args(hint):
            # A flag could not say which of three it is: --envelope False.
            markers.append(tyro.conf.FlagConversionOff)
    elif _allows_none(hint):
        kinds = [each for each in typing.get_args(hint) if each is not type(None)]
        hint = functools.reduce(operator.or_, kinds) | Literal["none"]
    if default is False or default in ((), ""):
        told["help_behavior_hint"] = ""
    for marker in (tyro.conf.arg(**told), *markers):
        hint = Annotated[hint, marker]
    if default is dataclasses.MISSING:
        return field.name, hint, dataclasses.field()
    return field.name, hint, dataclasses.field(default=default)


def _allows_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _optional_part(hint: Any) -> type[Any] | None:
    if not _allows_none(hint):
        return None
    kinds = [each for each in typing.get_args(hint) if isinstance(each, type)]
    return next((each for each in kinds if dataclasses.is_dataclass(each)), None)


def _help(owner: type[Any], name: str) -> str:
    """The text on an attribute in the docstring of the class or of one of its bases."""
    for kind in owner.__mro__:
        for each in docstring_parser.parse(kind.__doc__ or "").params:
            if each.arg_name == name:
                return " ".join((each.description or "").split())
    return ""


def _sentence(text: str, hint: Any = None) -> str:
    """The text with a capital, unless it begins with one of the option's own values."""
    literals = [h for h in (hint, *typing.get_args(hint)) if typing.get_origin(h) is Literal]
    values = [str(value) for each in literals for value in typing.get_args(each)]
    first = re.split(r"\W", text, maxsplit=1)[0]
    return text if first in values else text[:1].upper() + text[1:]


def _rebuilt(command: type[T], parsed: Any) -> T:
    """The command, rebuilt from its flattened options."""
    values = {each.name: getattr(parsed, each.name) for each in dataclasses.fields(parsed)}
    if more := values.pop(MORE, None):
        values |= {each.name: getattr(more, each.name) for each in dataclasses.fields(more)}
    own: dict[str, Any] = {}
    for field in dataclasses.fields(command):  # type: ignore[arg-type]
        default = _default(field)
        if field.name == CONFIG:
            own[CONFIG] = _filled(default, lambda name: values[name])
        elif field.init:
            own[field.name] = _value(command, field.name, values[field.name], default)
    return command(**own)


def _filled(default: Any, get: Callable[[str], Any]) -> Any:
    """The configuration `default` with the values that were parsed."""
    kind = type(default)
    changes = {}
    for field in dataclasses.fields(default):
        if field.init:
            value = getattr(default, field.name)
            changes[field.name] = _value(kind, field.name, get(field.name), value)
    return dataclasses.replace(default, **changes)


def _value(owner: type[Any], name: str, given: Any, default: Any) -> Any:
    """A parsed value as the field `name` of `owner` takes it."""
    if _is_part(default):
        return _filled(default, lambda inner: getattr(given, inner))
    hint = typing.get_type_hints(owner)[name]
    if given == _NOTHING and default is not None and _allows_none(hint):
        return None
    if (part := _optional_part(hint)) is not None and given is not None:
        names = [each.name for each in dataclasses.fields(part)]
        return part(**dict(zip(names, given, strict=True)))
    return given


def print_config(config: Any, console: Console) -> int:
    """Print a configuration dataclass as JSON."""
    console.out(json.dumps(dataclasses.asdict(config), indent=2, default=str), highlight=False)
    return 0
