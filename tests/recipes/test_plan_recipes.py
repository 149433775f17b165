"""Plans for recipes: what is tried, that it can be trained, and what a plan is kept under."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from recipe_cases import code, messages, molecules, papers, trained, waves

from weft.batching import POLICIES, BatchingConfig
from weft.graphs import write_table
from weft.planning import Plan, applied
from weft.planning.task import PlanTask, best_of, content_of, key_of, made_for, thread_counts
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.config import PUBLISHED, NodesConfig
from weft.recipes.nodes.recipe import NodesDataOptions
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.planned_runs import read_task
from weft.recipes.programs.candidates import ProgramsTask
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import read_programs
from weft.recipes.sparse_training import SparseTask
from weft.recipes.structures.candidates import StructuresTask
from weft.recipes.structures.training import StructuresConfig

MANY = [4, 2, 1]
THREADS = ("4 threads", "2 threads", "1 thread")
FORMS = {"csr", "banded", "dense"}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans as if there were four; what is trained here computes with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for room in ("programs.candidates", "sparse_training", "structures.candidates"):
        monkeypatch.setattr(f"weft.recipes.{room}.thread_counts", lambda: MANY)
    monkeypatch.setattr("weft.recipes.structures.candidates.cores", lambda: MANY[0])
    yield
    torch.set_num_threads(before)


def structures(**options: Any) -> StructuresConfig:
    batching = options.pop("batching", BatchingConfig(policy="dynamic", batch_size=8))
    return StructuresConfig(
        **{"data": "own", "target": "energy", "hidden": 4, "layers": 1, "epochs": 5}
        | {"batching": batching, **options}
    )


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [2, 1]), (6, [6, 3, 2, 1]), (64, [64, 32, 8, 1])]
)
def test_threads_worth_a_try(monkeypatch, cores, counts):
    monkeypatch.setattr("weft.planning.task.cores", lambda: cores)
    assert thread_counts() == counts


@pytest.fixture(scope="module")
def chains() -> Any:
    return molecules()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("programs")
    source = code(folder / "code")
    return read_programs(str(source), data_dir=folder / "data", progress=False)


def small_programs(**options: Any) -> ProgramsConfig:
    return ProgramsConfig(**{"hidden": 8, "steps": 2, "nodes": 256, "epochs": 3} | options)


def labels(wave: Any) -> list[str]:
    return [candidate.label for candidate in wave]


def test_structures_are_tried_by_threads_then_policies_then_compilers(chains):
    recipe = StructuresTask("molecules", chains, structures())
    first, second, third = waves(recipe, ["unpadded", "packed", "2 threads"])
    assert labels(first) == [f"dynamic, eager, {count}" for count in THREADS]
    assert labels(second) == [f"{policy}, eager, 2 threads" for policy in POLICIES]
    assert labels(third) == [
        "unpadded, eager, 4 threads",
        "unpadded, eager, 2 threads",
        "unpadded, eager, 1 thread",
        "unpadded, eager, 2 threads, 2 ranks",
        "unpadded, eager, 1 thread, 4 ranks",
        "packed, compiled (static), 2 threads",
        "unpadded, compiled (dynamic), 2 threads",
    ]
    (known,) = recipe.known
    assert known.label == "unpadded, compiled (static), 2 threads"
    assert known.outcome.startswith("not tried: ")


def test_too_many_shapes_are_told_without_a_trial():
    batching = BatchingConfig(policy="unpadded", batch_size=3)
    recipe = StructuresTask("molecules", molecules(1500, largest=24), structures(batching=batching))
    shapes = recipe.batches("unpadded").distinct_shapes
    assert shapes > 256
    waves(recipe, ["unpadded"])
    outcomes = {each.label: each.outcome for each in recipe.known}
    assert outcomes["unpadded, compiled (static), 4 threads"] == "recompile limit"
    assert any(
        f"recompile limit, {shapes} shapes of 256 at most" in remark for remark in recipe.remarks
    )


def test_forces_are_never_compiled(chains):
    recipe = StructuresTask("molecules", chains, structures(forces="forces"))
    assert not any(each.compiles for wave in waves(recipe) for each in wave)


def test_a_policy_that_cannot_be_is_told_with_its_reason(chains):
    batching = BatchingConfig(policy="dynamic", batch_size=8, paper=True)
    recipe = StructuresTask("molecules", chains, structures(batching=batching))
    assert labels(waves(recipe)[1]) == ["dynamic, eager, 4 threads"]
    assert "packed, eager, 4 threads" in [each.label for each in recipe.known]
    assert all("paper=True" in each.outcome for each in recipe.known if not each.compiles)


def test_structures_train_without_end_and_count_their_graphs(chains, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = StructuresTask("molecules", chains, structures(max_steps=1))
    for candidate in waves(recipe)[1]:
        # More steps than an epoch has: there is an evaluation between them.
        sizes = trained(recipe.work, candidate.settings, steps=12)
        assert max(sizes) in (7, 8)
    assert list(tmp_path.iterdir()) == []


def test_the_run_that_is_asked_for(chains):
    recipe = StructuresTask("molecules", chains, structures())
    batches = recipe.batches("dynamic")
    assert recipe.steps == 5 * batches.batches
    assert recipe.step_units == pytest.approx(48 / batches.batches)
    assert StructuresTask("molecules", chains, structures(max_steps=3)).steps == 3


def test_fill_is_among_the_reasons(chains):
    recipe = StructuresTask("molecules", chains, structures())
    plan = plan_of(recipe)
    (reason, *_) = recipe.explain(plan)
    fill = recipe.batches("packed")
    assert f"packed {fill.node_fill:.0%} and {fill.edge_fill:.0%}" in reason


def test_ranks_are_compared_with_threads(chains):
    from recipe_cases import measured

    from weft.planning import Candidate

    recipe = StructuresTask("molecules", chains, structures())
    alone = Candidate({"batching.policy": "packed", "compile": "eager", "threads": 2})
    times = {alone: 1.0, alone.but(threads=1): 1.5, alone.but(threads=1, processes=2): 1.25}
    found = tuple(replace(measured(each, []), median=time) for each, time in times.items())
    assert (
        "ranks that share every batch take 1.25 times what threads of one process do (packed, "
        "eager, 1 thread, 2 ranks; packed, eager, 2 threads)"
    ) in recipe.explain(plan_of(recipe, measured=found))
    assert not any("ranks" in each for each in recipe.explain(plan_of(recipe, measured=found[:2])))


def plan_of(recipe: PlanTask, **fields: Any) -> Plan:
    from recipe_cases import measured

    from weft.planning import Candidate

    settings = {"batching.policy": "packed", "compile": "eager", "threads": 2}
    chosen = replace(measured(Candidate(settings), []), outcome="chosen")
    return Plan(
        **{
            "recipe": recipe.name,
            "settings": settings,
            "target": "time",
            "units": recipe.work.units,
            "total_units": recipe.steps * recipe.step_units,
            "measured": (chosen,),
            "key": key_of(recipe),
        }
        | fields
    )


def test_programs_are_tried_by_threads_then_forms_then_compilers(programs):
    recipe = ProgramsTask(programs, small_programs())
    first, second, third = waves(recipe, ["csr", "1 thread", "dynamic"])
    assert labels(first) == [f"csr, packed, eager, {count}" for count in THREADS]
    assert "csr, dynamic, eager, 1 thread" in labels(second)
    assert labels(third)[:3] == [f"csr, dynamic, eager, {count}" for count in THREADS]
    for candidate in (*first, *second, *third):
        applied(recipe.config, candidate.settings)
    for candidate in second:
        assert min(trained(recipe.work, candidate.settings, steps=2)) > 0
    forms = {each.settings["layout.form"] for each in second}
    assert forms | {each.settings["layout.form"] for each in recipe.known} == FORMS
    block = {each.settings["layout.block"] for each in second if "banded" in each.label}
    compiled = [f"banded, block {each}, dynamic, compiled (static), 1 thread" for each in block]
    assert labels(third)[3:] == compiled


def test_a_size_of_supergraphs_to_be_measured_is_settled_once(programs):
    recipe = ProgramsTask(programs, small_programs(nodes=0))
    sizes = {each.settings["nodes"] for each in waves(recipe)[1]}
    assert len(sizes) == 1
    assert sizes.pop() >= 1024
    assert "nodes" not in key_of(recipe)["config"]
    assert key_of(ProgramsTask(programs, small_programs()))["config"]["nodes"] == 256


def test_blocks_that_are_given_stay(programs):
    config = small_programs()
    config = replace(config, layout=replace(config.layout, form="banded", block=128))
    recipe = ProgramsTask(programs, config)
    for candidate in waves(recipe)[1]:
        settled = applied(config, candidate.settings)
        assert settled.layout.block == (None if settled.layout.form == "csr" else 128)


@pytest.mark.parametrize("sparsify", ["none", "rigl", "gmp", "lottery"])
def test_links_in_both_forms(sparsify):
    pytest.importorskip("gensim")
    config = LinksConfig(data="own", epochs=2, hidden=(16,), sparsify=sparsify)
    recipe = SparseTask("links", prepare_links(messages(), config))
    (wave,) = recipe.waves()
    forms = ["dense", "sparse"] if sparsify == "rigl" else ["dense"]
    assert labels(wave) == [f"{form}, {count}" for count in THREADS for form in forms]
    assert bool(recipe.known) == (sparsify in ("gmp", "lottery"))
    # 400 edges for the latest training pairs and as many others, 128 a step.
    assert recipe.steps == 2 * 4 * (6 if sparsify == "lottery" else 1)
    work = pickle.loads(pickle.dumps(recipe.work))
    for form in forms:
        assert trained(work, {"form": form, "threads": 1}, steps=20)[:2] == [128, 128]


@pytest.mark.parametrize("model", ["gcn", "fnn"])
def test_nodes_in_both_forms(model):
    pytest.importorskip("gensim")
    config = NodesConfig(data="own", model=model, epochs=2, sparsify="rigl")
    recipe = SparseTask("nodes", prepare_nodes(papers(), config))
    (wave,) = recipe.waves()
    forms = {each.settings["form"] for each in wave}
    assert forms == ({"dense"} if model == "gcn" else {"dense", "sparse"})
    assert recipe.steps == 2
    assert recipe.step_units == 120
    work = pickle.loads(pickle.dumps(recipe.work))
    for form in forms:
        assert trained(work, {"form": form, "threads": 1}, steps=3) == [120] * 3


def test_citations_by_threads(tmp_path):
    write_table(tmp_path / "cora.weft", [papers()])
    config = replace(PUBLISHED, epochs=7, patience=1)
    recipe = read_task("citations", config, NodesDataOptions(data_dir=tmp_path), progress=False)
    assert [labels(wave) for wave in recipe.waves()] == [[f"dense, {each}" for each in THREADS]]
    assert (recipe.name, recipe.steps) == ("citations", 7)
    work = pickle.loads(pickle.dumps(recipe.work))
    assert len(trained(work, {"threads": 1}, steps=9)) == 9


def test_what_a_plan_is_kept_under(chains):
    def key(table: Any = chains, **options: Any) -> dict[str, Any]:
        return key_of(StructuresTask("molecules", table, structures(**options)))

    plain = key()
    packed = BatchingConfig(policy="dynamic", batch_size=8, seed=4)
    for same in (key(learning_rate=0.1), key(seed=3), key(batching=packed), key(patience=2)):
        assert same == plain
    larger = BatchingConfig(policy="dynamic", batch_size=16)
    others = (key(hidden=8), key(molecules(seed=1)), key(batching=larger), key(epochs=500))
    for other in others:
        assert other != plain
    short = StructuresTask("molecules", chains, structures())
    assert key_of(short, steps=9)["total_units"] < plain["total_units"]
    assert key_of(short, target="memory") != plain


def test_what_a_plan_was_made_for(chains):
    recipe = StructuresTask("molecules", chains, structures())
    plan = plan_of(recipe)
    assert made_for(plan, recipe) == ""
    wide = StructuresTask("molecules", chains, structures(hidden=8))
    assert made_for(plan, wide) == "hidden = 4, and here it is 8"
    batching = BatchingConfig(policy="dynamic", batch_size=16)
    large = StructuresTask("molecules", chains, structures(batching=batching))
    assert made_for(plan, large) == "batching.batch_size = 8, and here it is 16"
    other = StructuresTask("molecules", molecules(seed=1), structures())
    assert made_for(plan, other) == "other data"
    long = StructuresTask("molecules", chains, structures(epochs=5000))
    assert made_for(plan, long) == "a run of 240 structures, and this one is of 240,000"
    assert made_for(plan, StructuresTask("molecules", chains, structures(epochs=6))) == ""
    elsewhere = {**plan.key, "machine": {**plan.key["machine"], "cores": 999}}
    assert "cores = 999" in made_for(replace(plan, key=elsewhere), recipe)


def test_the_hash_of_a_table_is_of_its_content(chains, tmp_path):
    first, again = (write_table(tmp_path / name, [chains]) for name in ("a.weft", "b.weft"))
    assert content_of(first) == content_of(again)
    assert content_of(first) != content_of(write_table(tmp_path / "c.weft", [molecules(seed=1)]))
    assert content_of(chains) == content_of(molecules())
    assert content_of(chains) != content_of(molecules(seed=1))


def test_threads_and_the_best(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert thread_counts() == [8, 4, 2, 1]
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    assert thread_counts() == [1]
    assert best_of([], "threads") == []


def test_mistakes(chains, tmp_path):
    recipe = StructuresTask("molecules", chains, structures())
    with pytest.raises(ValueError, match="steps is 0; it must be at least 1"):
        key_of(recipe, steps=0)
    with pytest.raises(ValueError, match="recipe is 'potatoes'; choose from molecules"):
        read_task("potatoes", structures())
