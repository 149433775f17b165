"""Lines of a git work tree that are not as they were at a revision."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from weft.errors import DataError

_SECONDS = 120
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


class Lines:
    """Numbers of lines, from 1; `Lines()` are all."""

    def __init__(self, ranges: list[range] | None = None) -> None:
        self._ranges = ranges

    def __contains__(self, line: object) -> bool:
        return self._ranges is None or any(line in each for each in self._ranges)


def changed_since(revision: str, path: Path) -> dict[Path, Lines]:
    """The changed lines of the files in `path`, a file or folder, by their resolved paths.

    Lines of the work tree, committed or not; all of a file that git does not know yet.

    Raises:
        DataError: there is no git, no repository around `path`, or no such revision.
    """
    folder = path if path.is_dir() else path.parent
    top = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    asked = f"{revision}^{{commit}}"
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", asked)
    where = ("--", str(path.resolve()))
    options = ("--unified=0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/")
    found: dict[Path, Lines] = {}
    ranges: list[range] = []
    for line in _git(folder, "diff", *options, commit.strip(), *where).splitlines():
        if line.startswith("+++ "):
            ranges = []
            name = _unquoted(line[4:])
            if name != "/dev/null":
                found[(top / name.removeprefix("b/")).resolve()] = Lines(ranges)
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            ranges.append(range(first, first + count))
    new = _git(top, "ls-files", "--others", "--exclude-standard", "-z", *where)
    return found | {(top / name).resolve(): Lines() for name in new.split("\0") if name}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "core.quotePath=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS)  # noqa: S603
    except FileNotFoundError:
        raise DataError("--changed-since asks git, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"git gave no answer in {_SECONDS} s: {' '.join(command)}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[0] if said else f"no such revision: {arguments[-1].removesuffix('^{commit}')}"
        raise DataError(f"--changed-since: git in {folder} says: {why}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _unquoted(name: str) -> str:
    """A name as git prints it: in quotes, if there are odd characters in it."""
    # git ends a name with a blank in it by a tab.
    name = name.removesuffix("\t")
    if not (name.startswith('"') and name.endswith('"')):
        return name
    inside = name[1:-1].encode("utf-8", "surrogateescape").decode("latin-1")
    return (
        inside.encode("latin-1")
        .decode("unicode_escape")
        .encode("latin-1")
        .decode("utf-8", "surrogateescape")
    )
