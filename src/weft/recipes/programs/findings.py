"""What was found in code: a finding, the forms in which editors and CI read it, what is known."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import weft
from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically

RULE = "variable-misuse"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_IGNORED = re.compile(r"#\s*weft:\s*ignore\b")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A use of a variable, and the name that is likeliest there beside it.

    Attributes:
        file: its path.
        line: from 1.
        column: in characters, from 1.
        name: as it is written.
        suggestion: the likeliest of the other names in scope.
        probability: of the suggestion; a detector's, that the use is wrong.
        written: probability of `name`.
    """

    file: str
    line: int
    column: int
    name: str
    suggestion: str
    probability: float
    written: float

    @property
    def place(self) -> str:
        """As compilers print it."""
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"'{self.suggestion}' is likelier here than '{self.name}' "
            f"({self.probability:.1%} against {self.written:.1%})"
        )


def is_ignored(line: str) -> bool:
    """Whether a line of code says that nothing on it is to be reported."""
    return _IGNORED.search(line) is not None


class Baseline:
    """Findings that are known and not reported again, however the lines around them move.

    A finding is known by its file, its names and the text of its line; where the same is found
    several times, as often as it was when the file was written.
    """

    def __init__(self, path: Path) -> None:
        """The file `path`, to read or to write."""
        self.path = path
        self._known: Counter[str] = Counter()

    def read(self) -> None:
        """Read what is known.

        Raises:
            DataError: there is no such file, or it is none that was written here.
        """
        if not self.path.is_file():
            raise DataError(
                f"there is no baseline {self.path}; write it with --baseline {self.path} "
                "--write-baseline"
            )
        for known in read_object(self.path, {"findings": list})["findings"]:
            if not isinstance(known, dict) or not isinstance(known.get("key"), str):
                raise DataError(f"{self.path} is not a baseline of weft: {str(known)[:60]}")
            self._known[known["key"]] += 1

    def is_new(self, finding: Finding, line: str) -> bool:
        """Whether a finding is not among the known; each of these counts once."""
        key = self._key(finding, line)
        self._known[key] -= 1
        return self._known[key] < 0

    def write(self, findings: Sequence[tuple[Finding, str]]) -> None:
        """Write all findings, each with the text of its line, as those that are known."""
        known = [
            {
                "file": self._file(each),
                "name": each.name,
                "suggestion": each.suggestion,
                "key": self._key(each, line),
            }
            for each, line in findings
        ]
        known.sort(key=lambda entry: (entry["file"], entry["key"]))
        text = json_text({"findings": known}, indent=2) + "\n"
        write_atomically(self.path, lambda file: file.write(text.encode()))

    def _key(self, finding: Finding, line: str) -> str:
        parts = (self._file(finding), finding.name, finding.suggestion, line.strip())
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def _file(self, finding: Finding) -> str:
        # From the baseline's folder, so that it holds wherever the code is checked out.
        relative = os.path.relpath(finding.file, self.path.parent)
        return PurePath(relative).as_posix().encode("utf-8", "backslashreplace").decode()


def findings_github(findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """The same as annotations that GitHub Actions shows beside the changed lines."""
    lines = [
        f"::warning file={_property(f.file)},line={f.line},col={f.column},"
        f"endColumn={f.column + len(f.name)},title={RULE}::{_message(f.sentence)}"
        for f in findings
    ]
    lines += [
        f"::notice file={_property(file)}::{_message(f'not looked at: {reason}')}"
        for file, reason in skipped.items()
    ]
    return "".join(f"{line}\n" for line in lines)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def findings_json(findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """All findings, and the files or functions that were not looked at, with the reason."""
    value = {"findings": [asdict(finding) for finding in findings], "skipped": dict(skipped)}
    return json_text(value, indent=2) + "\n"


def findings_sarif(findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """The same as a log of SARIF 2.1.0, with the suggestions as fixes."""
    rule = {
        "id": RULE,
        "name": "VariableMisuse",
        "shortDescription": {"text": "Another variable in scope is likelier here"},
        "fullDescription": {
            "text": "A network trained on other programs finds another name in scope likelier "
            "than the one that is written."
        },
        "defaultConfiguration": {"level": "warning"},
    }
    driver = {"name": "weft", "semanticVersion": weft.__version__, "rules": [rule]}
    notes = [
        {
            "level": "warning",
            "message": {"text": f"not looked at: {reason}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(file)}}}],
        }
        for file, reason in skipped.items()
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [_result(finding) for finding in findings],
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding) -> dict[str, Any]:
    artifact = {"uri": _uri(finding.file)}
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.line,
        "endColumn": finding.column + len(finding.name),
    }
    replacement = {"deletedRegion": region, "insertedContent": {"text": finding.suggestion}}
    return {
        "ruleId": RULE,
        "ruleIndex": 0,
        "level": "warning",
        "message": {"text": finding.sentence},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        "rank": round(100 * finding.probability, 2),
        "fixes": [
            {
                "description": {"text": f"Write '{finding.suggestion}'"},
                "artifactChanges": [{"artifactLocation": artifact, "replacements": [replacement]}],
            }
        ],
    }


def _uri(file: str) -> str:
    path = PurePath(file)
    # Bytes: a name may hold what is no text in the encoding of names.
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))
