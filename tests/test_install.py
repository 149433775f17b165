"""What a stranger installs: the wheel and the source archive, and the errors of a bare install."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import DataError

ROOT = Path(__file__).resolve().parents[1]
ARCHIVED = [".github/workflows/ci.yml", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE"]
ARCHIVED += ["Makefile", "README.md", "conda/recipe.yaml", "constraints.txt", "pyproject.toml"]

TEN_LINES = """
import torch, weft
batches = weft.loader(weft.open("mine.extxyz"), policy="packed", batch_size=8)
model = weft.SchNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

def loss(model, batch):
    error = model(batch) - batch.graphs["energy"]
    return (error**2)[batch.graph_mask].mean()

print(weft.fit(model, optimizer, batches, loss, epochs=1, run="runs/a").stopped)
print(weft.write_page(["runs/a"]).name, weft.__file__)
"""


def run(*command: object, at: Path, **environment: str) -> str:
    """What the command prints, run in the folder `at`."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=at,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    folder = tmp_path_factory.mktemp("archive")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, at=ROOT)
    with tarfile.open(folder / f"weft-{weft.__version__}.tar.gz") as file:
        file.extractall(folder, filter="data")
    return folder / f"weft-{weft.__version__}"


@pytest.fixture(scope="module")
def wheel(archive: Path) -> Path:
    """The wheel, built from the source archive."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", at=archive)
    return next((archive / "dist").glob("*.whl"))


def test_the_source_archive_can_be_built_and_tested(archive: Path) -> None:
    there = {path.relative_to(archive).as_posix() for path in archive.rglob("*") if path.is_file()}
    assert there.issuperset(ARCHIVED)
    # Tables and runs are left out of the repository, but not those that tests read.
    for folder in ("src", "tests"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        names = {
            path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts
        }
        assert names - there == set()


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    packages = {f"weft-{weft.__version__}.dist-info", "weft", "weft_lab"}
    assert {name.partition("/")[0] for name in names} == packages
    assert {"weft/py.typed", "weft_lab/py.typed", "weft/report/page.css"} <= names
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if "dist-info" not in name} == sources


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_wheel_works_without_a_checkout(installer: str, wheel: Path, tmp_path: Path) -> None:
    there, empty = tmp_path / "there", tmp_path / "empty"
    empty.mkdir()
    shutil.copy(ROOT / "tests" / "data" / "before" / "mols.extxyz", empty / "mine.extxyz")
    if installer == "pip":
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        run(*pip, "install", "-q", "--no-deps", "--no-index", "--target", there, wheel, at=empty)
    else:
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if uv is None:
            pytest.skip("there is no uv here")
        python = f"--python={sys.executable}"
        run(uv, "pip", "install", "-q", python, "--no-deps", "--offline", "--target", there, wheel,
            at=empty, UV_CACHE_DIR=str(tmp_path / "cache"))  # fmt: skip

    script = [sys.executable, there / "bin" / "weft"]
    path, data = str(there), str(tmp_path / "data")
    assert "weft GROUP COMMAND" in run(*script, "--help", at=empty, PYTHONPATH=path)
    if installer == "uv":
        # The same files: what follows would be the same.
        return
    assert "CollegeMsg" in run(*script, "data", "list", at=empty, PYTHONPATH=path, WEFT_DATA=data)
    said = run(sys.executable, "-c", TEN_LINES, at=empty, PYTHONPATH=path, WEFT_DATA=data)
    assert said.split("\n")[:-1] == ["finished", f"report.html {there / 'weft' / '__init__.py'}"]


def test_it_trains_with_what_python_has_on_windows(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "before" / "mols.extxyz", tmp_path / "mine.extxyz")
    script = ROOT / "tests" / "as_on_windows.py"
    assert run(sys.executable, script, at=tmp_path, WEFT_DATA=str(tmp_path)) == "2 epochs True\n"


# -- What is not installed -------------------------------------------------------------------------

# Import names that are not those of the packages.
PACKAGE_OF = {
    "docstring_parser": "docstring-parser",
    "llvmlite": "numba",
    "mlflow": "mlflow-skinny",
    "pytorch_lightning": "pytorch-lightning",
    "torch_sim": "torch-sim-atomistic",
    "typing_extensions": "typing-extensions",
}


@pytest.fixture(scope="module")
def needs(wheel: Path) -> dict[str, list[str]]:
    """The packages of every extra, as the wheel has them; "" is what it always needs."""
    with zipfile.ZipFile(wheel) as file:
        text = file.read(f"weft-{weft.__version__}.dist-info/METADATA").decode()
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE):
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == '(\w+)'", line)
        assert package is not None
        found.setdefault(extra[1] if extra else "", []).append(package[0].lower())
    return found


def imported() -> set[str]:
    """What weft imports of others, by the names of the packages."""
    line = re.compile(r"^ *(?:from ([a-z_0-9]+)[\w.]* import |import ([a-z_0-9]+))", re.MULTILINE)
    texts = [path.read_text(encoding="utf-8") for path in Path(weft.__file__).parent.rglob("*.py")]
    found = {one or other for text in texts for one, other in line.findall(text)}
    return {PACKAGE_OF.get(name, name) for name in found - sys.stdlib_module_names - {"weft"}}


GRAPH = weft.Graph(num_nodes=3, senders=np.array([0, 1]), receivers=np.array([1, 2]))


def _import(name: str) -> Callable[[], object]:
    return lambda: importlib.import_module(name)


def _lmdb() -> object:
    from weft.sources.aselmdb import read_aselmdb

    return next(read_aselmdb(Path("a.aselmdb")))


def _structures() -> object:
    from weft.sources.atoms import read_structures

    return next(read_structures([Path("a.xyz")], lambda done: None))


def _conversion(to: str) -> Callable[[], object]:
    def call() -> object:
        from weft.graphs import convert

        return getattr(convert, to)(GRAPH)

    return call


def _parquet() -> object:
    from weft.sources.parquet_files import open_parquet

    return open_parquet(Path("edges.parquet"))


def _crystal() -> object:
    from weft.sources.neighbour_search import pairs_of_images

    cell = np.eye(3) * 9
    ends, pbc = np.zeros((1, 3)), np.ones(3, dtype=bool)
    return pairs_of_images(ends, cell, pbc, 729.0, 5.0, allow=lambda edges: None)


def _parts() -> object:
    from weft.parallel.partition import partition_nodes

    return partition_nodes(GRAPH, 2, "metis")


def _order() -> object:
    from weft.layout.orders import reorder

    return reorder(weft.table_from_graphs([GRAPH]), "metis")


def _walks() -> object:
    from weft.walks import skip_gram

    return skip_gram(np.zeros((1, 2), dtype=int), 2, dim=2)


def _page() -> object:
    from weft.report.page import Page, render

    return render(Page(title="", chapters=()))


def _onnx(**options: bool) -> Callable[[], object]:
    def call() -> object:
        from weft.models.exported_program import check_file

        return check_file(Path("model.onnx").absolute(), **options)

    return call


def _plot() -> object:
    from weft.report.figures import bars

    return bars("", [("a", 1.0, 1.0, 1.0)], x="", of="")


def _logger(name: str) -> Callable[[], object]:
    def call() -> object:
        from weft.training.loggers import make_loggers

        return make_loggers([name], Path("run"))

    return call


def _triton() -> object:
    from weft.kernels.backends import missing_triton

    raise DataError(missing_triton.__wrapped__() or "")


def _cora() -> object:
    from weft.sources.citation_graphs import cora_from_package

    return cora_from_package()


def _qm9() -> object:
    from weft.sources.qm9 import qm9_from_csv

    return qm9_from_csv(Path("qm9.weft"))


# Package, what is to be installed, what needs it.
MISSING: list[tuple[str, str, Callable[[], object]]] = [
    ("ase", "weft[chem]", _structures),
    ("ase", "weft[chem]", _conversion("graph_to_atoms")),
    ("ase", "weft[chem]", _import("weft.integrations.ase_calculator")),
    ("gensim", "weft[walks]", _walks),
    ("graphdatascience", "weft[data]", _cora),
    ("jinja2", "weft[report]", _page),
    ("lmdb", "weft[lmdb]", _lmdb),
    ("matplotlib", "weft[report]", _plot),
    ("mlflow", "weft[loggers]", _logger("mlflow")),
    ("networkx", "networkx", _conversion("graph_to_networkx")),
    ("onnx", "weft[export]", _onnx()),
    ("onnxruntime", "weft[export]", _onnx(int8=True)),
    ("onnxscript", "weft[export]", _onnx()),
    ("pyarrow", "weft[data]", _cora),
    ("pyarrow", "weft[parquet]", _parquet),
    ("pymetis", "weft[partition]", _order),
    ("pymetis", "weft[partition]", _parts),
    ("pytorch_lightning", "weft[lightning]", _import("weft.integrations.lightning")),
    ("qm9pack", "weft[data]", _qm9),
    ("torch_geometric", "torch_geometric", _conversion("graph_to_pyg")),
    ("torch_geometric", "torch_geometric", _import("weft.integrations.torch_geometric")),
    ("torch_sim", "weft[torchsim]", _import("weft.integrations.torchsim")),
    ("triton", "weft[gpu]", _triton),
    ("vesin", "weft[chem]", _crystal),
    ("wandb", "weft[loggers]", _logger("wandb")),
]


@pytest.mark.parametrize(("package", "install", "call"), MISSING)
def test_a_missing_package_is_named_with_its_extra(
    package: str,
    install: str,
    call: Callable[[], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needs: dict[str, list[str]],
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = {"lightning", "pytorch_lightning"} if "lightning" in package else {package}
    for name in {*gone, *sys.modules}:
        if name.partition(".")[0] in gone:
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith("weft.integrations."):
            monkeypatch.delitem(sys.modules, name)

    with pytest.raises((DataError, ImportError)) as caught:
        call()

    extra = re.fullmatch(r"weft\[(\w+)\]", install)
    asked = f"'{install}'" if extra else install
    assert f"pip install {asked}" in str(caught.value)
    if extra:
        assert PACKAGE_OF.get(package, package) in needs[extra[1]]


def test_all_that_is_imported_is_needed_or_tried_above(needs: dict[str, list[str]]) -> None:
    tried = {PACKAGE_OF.get(package, package) for package, _, _ in MISSING}
    assert "ase" in imported()
    assert imported() - tried - set(needs[""]) == set()
