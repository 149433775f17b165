"""What every command offers: its options with their choices, taken from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro

from weft.cli.main import groups

# What a shell would take for something else is not offered.
_PLAIN = re.compile(r"[\w.+^-]+")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a command.

    Attributes:
        flags: its names, dashes included.
        choices: what its value can be, if that can be listed.
        takes_value: whether a value follows it.
        explanation: in a few words.
    """

    flags: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What can follow `weft WORDS`.

    Attributes:
        words: a group, and its command if it has several.
        explanation: in a line.
        options: all of the command's.
    """

    words: tuple[str, ...]
    explanation: str
    options: tuple[Option, ...]


def screens() -> list[Screen]:
    """Those of all commands; imports every one of them, which takes seconds."""
    found = []
    for group in groups():
        module = importlib.import_module(groups()[group][1])
        if hasattr(module, "COMMAND"):
            found.append(_screen((group,), module.COMMAND))
        for name, command in getattr(module, "COMMANDS", {}).items():
            found.append(_screen((group, name), command))
    return found


def _screen(words: tuple[str, ...], command: Callable[..., Any]) -> Screen:
    with warnings.catch_warnings():
        # tyro's own completions start Python at every key press; its parsers, which it would
        # rather keep to itself, have all that a script needs to hold.
        warnings.filterwarnings("ignore", "get_parser", DeprecationWarning)
        parser = tyro.extras.get_parser(command)
    return Screen(
        words=words,
        explanation=(command.__doc__ or "").strip().split("\n")[0].rstrip("."),
        options=tuple(_option(action) for action in parser._actions if action.option_strings),
    )


def _option(action: argparse.Action) -> Option:
    choices = dict.fromkeys(map(str, action.choices or ()))
    # The first sentence, without the default.
    told = re.split(r"[.;:] | \(default", (action.help or "").strip())[0].rstrip(".;:")
    return Option(
        flags=tuple(action.option_strings),
        choices=tuple(word for word in choices if _PLAIN.fullmatch(word)),
        takes_value=action.nargs != 0,
        explanation=" ".join(told.split())[:70],
    )
