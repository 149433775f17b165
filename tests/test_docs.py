"""Every Python snippet of the README and the docs runs, page by page, in an empty folder.

The cells of the tutorials are such snippets; `make docs` runs them as notebooks.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(
    r"^```(?:python|\{code-cell\} python(?:\n:tags:[^\n]*)?)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def with_snippets() -> list[Path]:
    return [page for page in PAGES if SNIPPET.search(page.read_text(encoding="utf-8"))]


# torch_geometric's and TorchSim's, when they are imported; Python shows a reader none of them.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.vesin.torch. is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("page", with_snippets(), ids=lambda page: page.stem)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    # What a reader brings: some molecules with energies and forces.
    shutil.copy(ROOT / "tests" / "data" / "before" / "mols.extxyz", "mine.extxyz")
    text = page.read_text(encoding="utf-8")
    # A module that can be imported: torch.compile looks up where a class was defined.
    module = ModuleType(f"weft_docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    count = 0
    for match in SNIPPET.finditer(text):
        # Blank lines put the snippet at its own line numbers in a traceback.
        above = "\n" * (text[: match.start(1)].count("\n"))
        code = re.sub(r"^%.*", "", match[1], flags=re.MULTILINE)  # settings of a notebook
        exec(compile(above + code, str(page), "exec"), module.__dict__)
        count += 1
    assert count > 0


def test_readme_example_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = SNIPPET.search(text)
    assert first is not None
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 15


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pages_name_no_machine_path() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|work|tmp|opt)/", text), page.name


def test_readme_fits_a_reader() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    # A reader must not take figures of CPUs for those of GPUs.
    first_screen = " ".join(lines[:25])
    assert "measured on CPUs" in first_screen


def test_badges_say_what_pyproject_says() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)", project)
    assert f"{versions[0]} to {versions[-1]}" in (ROOT / "docs/badges/python.svg").read_text()
    licence = re.search(r'^license = "(.*)"', project, re.MULTILINE)
    assert licence is not None
    assert licence[1] in (ROOT / "docs/badges/licence.svg").read_text()
