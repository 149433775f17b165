from __future__ import annotations

from pathlib import Path

from weft.graphs import GraphTable
from weft.sources.python_programs import program_table

_FUNCTION = """
def total_{name}(values, start, limit={limit}):
    result = start
    for value in values:
        if value > limit:
            result = result + value
        else:
            result = result - {limit} * start
{more}    return result
"""


def write_programs(folder: Path, files: int = 8) -> Path:
    """Files of made-up functions, some longer than others."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        functions = [
            _FUNCTION.format(
                name="abcd"[i],
                limit=number + i,
                more="    result = max(result, start, limit)\n" * (3 * i * (number % 3)),
            )
            for i in range(4)
        ]
        (folder / f"module_{number}.py").write_text("".join(functions))
    return folder


def small_program_table(folder: Path) -> GraphTable:
    return program_table(write_programs(folder), workers=1, progress=False)
