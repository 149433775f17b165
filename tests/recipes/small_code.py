"""Python files in which one variable always belongs in one place, for several tests."""

from __future__ import annotations

from pathlib import Path

FUNCTION = """
def {verb}_{number}(first, second):
    total = first + second
    return total
"""
WRONG = """def add(first, second):
    total = first + first
    return total
"""


def write_code(folder: Path, files: int = 15) -> Path:
    """A folder of them."""
    folder.mkdir()
    for file in range(files):
        verbs = ("add", "sum", "join", "put")
        text = "".join(FUNCTION.format(verb=verb, number=file) for verb in verbs)
        (folder / f"part{file}.py").write_text(text)
    return folder
