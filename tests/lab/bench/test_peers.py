"""The peers' scripts: what each must define, and how serve.py talks."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft_lab.bench
from weft.graphs import Budget, write_table
from weft.sources import small_graphs
from weft_lab.bench.molecules import _ASSEMBLE, _CASES
from weft_lab.bench.nodes import _CANDIDATES
from weft_lab.bench.programs import _FORMS, _PEERS
from weft_lab.bench.sparse import _CANDIDATES as _NETWORKS
from weft_lab.bench.sparse_cases import _ACCURACY

FOLDER = Path(weft_lab.bench.__file__).parent / "peers"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "serve.py")


def talk(script: Path, *messages: dict[str, Any]) -> tuple[list[dict[str, Any]], str, int]:
    """Replies, standard error and exit code of serve.py for these messages."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "serve.py"), str(script), "prepare"],
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, done.returncode


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_what_it_is_and_prepares(script: Path) -> None:
    tree = ast.parse(script.read_text())
    assert ast.get_docstring(tree)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    public = [each for each in functions if not each.name.startswith("_")]
    assert public
    for prepare in public:
        assert ast.get_docstring(prepare)
        assert [argument.arg for argument in prepare.args.args] == ["case"]


def test_every_candidate_names_a_function_that_is_there() -> None:
    tables = [_ASSEMBLE, _CANDIDATES, _FORMS, _PEERS, _ACCURACY, _NETWORKS]
    tables += [case.candidates for case in _CASES.values()]
    for candidate in (each for table in tables for each in table.values()):
        file, _, function = candidate.script.partition(":")
        tree = ast.parse((FOLDER / f"{file}.py").read_text())
        assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_serve_needs_the_standard_library_alone() -> None:
    tree = ast.parse((FOLDER / "serve.py").read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(("status", "found"), [("Name:\tpython\n", 0), ("VmHWM:\t 12 kB\n", 12288)])
def test_the_peak_of_memory_is_0_where_the_system_does_not_tell(
    status: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = runpy.run_path(str(FOLDER / "serve.py"))["_memory"]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: status)
    assert memory("VmHWM") == found


def test_the_protocol(tmp_path: Path) -> None:
    script = tmp_path / "loud.py"
    script.write_text(
        "import os, subprocess\n"
        "print('import')\n"
        "def prepare(case):\n"
        "    print('{\"samples\": []}')\n"
        "    subprocess.run(['echo', 'child'], check=True)\n"
        "    calls = []\n"
        "    def step():\n"
        "        calls.append(1)\n"
        "        print('step', flush=True)\n"
        "        os.write(1, b'raw')\n"
        "        return case['base'] + len(calls)\n"
        "    return step, {'loud': '2'}\n"
    )
    replies, errors, code = talk(
        script, {"base": 10, "warmup": 2}, {"steps": 3}, {"steps": 0}, {"steps": 1}
    )
    python = sys.version.split()[0]
    assert 0 <= replies[0].pop("data_bytes") <= replies[1]["peak_bytes"]
    for reply in replies[1:]:
        # In bytes; 0 where the system does not tell.
        peak = reply.pop("peak_bytes")
        assert peak > 1_000_000 or not Path("/proc/self/status").exists()
    assert replies == [
        {"versions": {"python": python, "loud": "2"}},
        {"samples": [13, 14, 15]},
        {"samples": []},
        {"samples": [16]},
    ]
    assert code == 0
    assert all(word in errors for word in ("import", "child", "step", "raw"))


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    script = tmp_path / "m.py"
    script.write_text("import json\nfrom json import no_such_name\n")
    replies, _, code = talk(script, {"warmup": 0}, {"steps": 1})
    assert len(replies) == 1
    assert "no_such_name" in replies[0]["absent"]
    assert code == 0


def test_other_errors_end_it(tmp_path: Path) -> None:
    script = tmp_path / "m.py"
    script.write_text("def prepare(case):\n    return lambda: case['nothing'], {}\n")
    replies, errors, code = talk(script, {"warmup": 1}, {"steps": 1})
    assert replies == []
    assert "KeyError: 'nothing'" in errors
    assert code == 1


def test_dynamic_batching_takes_what_fits(tmp_path: Path) -> None:
    steps = runpy.run_path(str(FOLDER / "weft_steps.py"))
    table = write_table(tmp_path / "t.weft", small_graphs(60, seed=3))
    budget = Budget(nodes=70, edges=200, graphs=7)
    batches: list[list[int]] = []

    def noted(_: object, graphs: np.ndarray, padded: Budget) -> None:
        assert padded == budget
        batches.append(graphs.tolist())

    steps["batches"].__globals__["assemble"] = noted
    case = {"table": str(table.path), "budget": vars(budget), "size": 7}
    step, _ = steps["batches"](case)
    while sum(map(len, batches)) < 60:
        step()
    assert sorted(graph for batch in batches for graph in batch) == list(range(60))
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        nodes, edges = table.num_nodes[batch].sum(), table.num_edges[batch].sum()
        assert 0 < len(batch) < budget.graphs
        assert nodes < budget.nodes
        assert edges <= budget.edges
        if after is not None:
            # One more would not have fitted.
            assert (
                nodes + table.num_nodes[after[0]] >= budget.nodes
                or edges + table.num_edges[after[0]] > budget.edges
                or len(batch) + 1 == budget.graphs
            )


def test_unpadded_batches_are_whole(tmp_path: Path) -> None:
    steps = runpy.run_path(str(FOLDER / "weft_steps.py"))
    table = write_table(tmp_path / "t.weft", small_graphs(60, seed=3))
    sizes: list[int] = []
    steps["batches"].__globals__["assemble"] = lambda _, graphs, padded: sizes.append(
        len(graphs) if padded is None else 0
    )
    step, _ = steps["batches"]({"table": str(table.path), "budget": None, "size": 16})
    for _ in range(7):
        step()
    # 60 graphs make three whole batches, and twelve that are left over.
    assert sizes == [16] * 7
