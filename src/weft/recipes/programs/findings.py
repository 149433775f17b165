"""Findings about variables, as JSON, and as SARIF for editors and code hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import weft
from weft.files import json_text

RULE = "variable-misuse"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A use of a variable, and the name that is likeliest there beside it.

    Attributes:
        file: its path.
        line: from 1.
        column: in characters, from 1.
        name: as it is written.
        suggestion: the likeliest of the other names in scope.
        probability: of the suggestion.
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
