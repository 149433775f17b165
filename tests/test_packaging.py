"""The files that other tools read (conda, Docker, GitHub): they say what pyproject.toml says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
GITHUB = ROOT / ".github"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
# Packages that have another name at conda-forge.
AT_CONDA = {
    "docstring-parser": "docstring_parser",
    "torch": "pytorch",
    "typing-extensions": "typing_extensions",
}


def listed(name: str) -> dict[str, str]:
    """A list of requirements in pyproject.toml: the range of each package."""
    found = re.search(rf"^{name} = \[(.*?)\]$", PROJECT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return dict(re.findall(r'"([A-Za-z0-9_-]+)([^"]*)"', found[1]))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_conda_recipe_needs_what_the_wheel_needs() -> None:
    recipe = read(ROOT / "conda" / "recipe.yaml")
    assert recipe["context"]["version"] == weft.__version__
    python = re.search(r'^requires-python = "(.*)"', PROJECT, re.MULTILINE)
    assert python is not None
    ours = {AT_CONDA.get(name, name): limits for name, limits in listed("dependencies").items()}
    ours["python"] = python[1]
    theirs = dict(line.split(" ", 1) for line in recipe["requirements"]["run"])
    assert theirs == ours
    host = recipe["requirements"]["host"]
    assert host[0] == f"python {python[1]}"
    assert host[-1] == "hatchling " + listed("requires")["hatchling"]
    assert recipe["build"]["python"]["entry_points"] == [
        "weft = " + re.findall(r'^weft = "(.*)"', PROJECT, re.MULTILINE)[0]
    ]


def test_the_docs_list_every_extra() -> None:
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    declared = re.findall(r"^(\w+) = \[", extras, re.MULTILINE)
    assert "chem" in declared
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(declared)


def test_the_image_is_built_of_files_that_are_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = {line.split()[0] for line in lines}
    assert words == {"ARG", "CMD", "COPY", "ENTRYPOINT", "FROM", "RUN", "USER", "WORKDIR"}
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        name
        for line in lines
        if line.startswith("COPY") and "--from" not in line
        for name in line.split()[1:-1]
    ]
    assert sorted(copied) == sorted(sent)
    assert all((ROOT / name).exists() for name in copied)
    # The pinned environment's Python, by a user without rights.
    assert (
        "Python 3.11" in (ROOT / "constraints.txt").read_text(encoding="utf-8").partition("\n")[0]
    )
    assert all(
        line.startswith("FROM python:3.11-slim") for line in lines if line.startswith("FROM")
    )
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]
    assert lines[-2:] == ['ENTRYPOINT ["weft"]', 'CMD ["--help"]']


def test_the_workflow_runs_what_is_there_on_all_declared_pythons() -> None:
    workflow = read(GITHUB / "workflows" / "ci.yml")
    jobs = workflow["jobs"]
    assert set(jobs) == {"docs", "installs", "lint", "tests", "wheels"}
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    assert all("@" in step["uses"] for step in steps if "uses" in step)
    commands = "\n".join(step["run"] for step in steps if "run" in step)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test"} <= set(re.findall(r"\bmake ([a-z-]+)", commands)) - {"docs"} <= targets
    for path in re.findall(r"\btests/\S+", commands):
        assert (ROOT / path).exists()

    matrix = jobs["installs"]["strategy"]["matrix"]
    more = [each["python"] for each in matrix["include"]]
    tried = {"3.11", *matrix["python"], *more}
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert tried == set(declared)
    assert (
        min(declared, key=lambda version: int(version[2:])) in PROJECT.split("requires-python")[1]
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_something(form: Path) -> None:
    asked = read(form)
    assert {"name", "description", "labels", "body"} == set(asked)
    names = [field["id"] for field in asked["body"]]
    assert names
    assert len(names) == len(set(names))
    for field in asked["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]


def test_what_a_community_looks_for_is_there() -> None:
    assert FORMS
    names = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"]
    for path in [*(ROOT / name for name in names), GITHUB / "pull_request_template.md"]:
        assert path.stat().st_size > 150
