"""A detector of misused variables: its loss, thresholds by false alarms, a run that finds one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_code import WRONG, write_code
from small_programs import config

from weft.errors import DataError
from weft.graphs import assemble
from weft.layout import TypedEdges
from weft.models import GGNNConfig
from weft.models.misuse import MisuseDetector, answers, misuse_loss
from weft.recipes.programs.data import read_programs
from weft.recipes.programs.detection import Calibration, Examined, read_calibration
from weft.recipes.programs.injection import inject
from weft.recipes.programs.prediction import inspect_code, load_programs
from weft.recipes.programs.recipe import PROGRAMS
from weft.recipes.programs.training import train_programs
from weft.sources.program_graph import MAY_STAND_IN
from weft.training import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A table of functions with one rule, and a run that has learned it."""
    folder = tmp_path_factory.mktemp("misuse")
    code = write_code(folder / "code", files=20)
    table = read_programs(str(code), target="misuse", data_dir=folder, progress=False)
    asked = config(start="subtokens", epochs=24, nodes=512, hidden=16, steps=4)
    with Run.create(folder / "run", asked, tensorboard=False) as run:
        trained = train_programs(table, asked, run=run, quiet=True)
    return folder, table, trained


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_plain_softmaxes(made, smoothing):
    _, table, _ = made
    batch = assemble(table, np.arange(12))
    torch.manual_seed(0)
    settings = GGNNConfig(hidden=8, steps=2, num_types=23, vocabulary=8192)
    model = MisuseDetector(settings).double()
    with torch.no_grad():
        judged = model(batch, TypedEdges.of_batch(batch, 23))
    found = misuse_loss(batch, judged, smoothing=smoothing)
    said = answers(batch, judged)
    total, right = 0.0, []
    pairs = [e for e in range(batch.num_edges) if batch.edges["type"][e] == MAY_STAND_IN]
    assert pairs == judged.pairs.tolist()
    for graph in range(12):
        own = [i for i, e in enumerate(pairs) if batch.node_graph[batch.receivers[e]] == graph]
        by_use: dict[int, list[int]] = {}
        for i in own:
            by_use.setdefault(int(batch.receivers[pairs[i]]), []).append(i)
        marks = {
            name: {i: int(batch.edges[name][pairs[i]]) for i in own}
            for name in ("right", "written")
        }
        fit, doubt = judged.fit.tolist(), judged.doubt.tolist()
        if batch.graphs["kind"][graph] == 2:
            losses, hits = [], []
            for use, choices in by_use.items():
                if batch.nodes["role"][use] != 1:
                    continue
                scale = math.log(sum(math.exp(fit[i]) for i in choices))
                (answer,) = (i for i in choices if marks["right"][i])
                even = sum(fit[i] - scale for i in choices)
                losses.append((fit[answer] - scale, even, len(choices)))
                hits.append(fit[answer] == max(fit[i] for i in choices))
            even = sum(e for _, e, _ in losses) / sum(n for _, _, n in losses)
            goal = (1 - smoothing) * sum(g for g, _, _ in losses) / len(losses) + smoothing * even
            total -= goal
            right.append(sum(hits) / len(hits))
            continue
        options = {i: doubt[i] for i in own if not marks["written"][i]}
        options[-1] = float(judged.fine[graph])
        scale = math.log(sum(math.exp(value) for value in options.values()))
        answer = next((i for i in own if marks["right"][i] and not marks["written"][i]), -1)
        even = sum(value - scale for value in options.values()) / len(options)
        total -= (1 - smoothing) * (options[answer] - scale) + smoothing * even
        right.append(float(max(options, key=options.__getitem__) == answer))
        assert float(said.fine[graph]) == pytest.approx(options[-1] - scale)
    assert float(found.loss) == pytest.approx(total)
    assert found.right.tolist() == pytest.approx(right)
    assert found.graphs == 12


def test_what_a_function_gets_does_not_depend_on_its_company(made):
    _, table, trained = made
    together, alone = (assemble(table, graphs) for graphs in ([3, 4, 5], [4]))
    with torch.no_grad():
        first, second = (
            trained.model(batch, TypedEdges.of_batch(batch, 23)) for batch in (together, alone)
        )
    torch.testing.assert_close(first.fine[1], second.fine[0])


def examined(chances: list[float], wrong: list[bool], lines: int) -> Examined:
    """Functions with one use and one other variable; a `chance` of 0.5 is a logit of 0."""
    count = len(chances)
    return Examined(
        doubt=np.log(np.array(chances) / (1 - np.array(chances))).astype(np.float32),
        use=np.arange(count),
        right=np.array(wrong),
        pair_graph=np.arange(count),
        fine=np.zeros(count, np.float32),
        kind=np.array(wrong).astype(np.int64),
        lines=np.full(count, lines),
        blanks=np.zeros((0, 5)),
        loss=1.0,
        accuracy=0.5,
    )


def test_a_threshold_lets_through_as_many_false_alarms_as_asked():
    clean = [0.9, 0.8, 0.7, *[0.1] * 7]
    seen = examined([*clean, 0.95, 0.75, 0.3], [False] * 10 + [True] * 3, lines=200)
    calibration = dataclasses.replace(seen.calibrated(), temperature=1.0)
    figures = seen.figures(
        Calibration(temperature=1.0, thresholds={0.5: 0.85, 1.0: 0.75, 2.0: 0.2}, lines=2000)
    )
    # Two of 2,000 lines are at or above 0.75, and two of the three misuses.
    assert figures["false_alarms"] == 1.0
    assert figures["found"] == pytest.approx(2 / 3)
    assert figures["repaired"] == pytest.approx(2 / 3)
    # 2 flags thrown at 10 uses of two variables.
    assert figures["found_by_chance"] == pytest.approx(0.2)
    assert calibration.lines == 2000
    cold = seen.flagged(1.0)
    alarms = cold.chance[~cold.wrong]
    for rate, threshold in calibration.thresholds.items():
        own = seen.flagged(seen.calibrated().temperature).chance[~cold.wrong]
        assert (own >= threshold).sum() <= rate * 2
    assert np.sort(alarms)[::-1][:3] == pytest.approx([0.9, 0.8, 0.7], rel=1e-5)


def test_thresholds_between_those_that_were_measured():
    known = Calibration(temperature=1.0, thresholds={1.0: 0.8, 4.0: 0.4}, lines=1)
    assert known.threshold(1.0) == pytest.approx(0.8)
    assert known.threshold(2.0) == pytest.approx(0.6)
    with pytest.raises(DataError, match=r"false alarms of 9 .* from 1 to 4 were"):
        known.threshold(9.0)


def test_temperature_is_what_makes_half_right_answers_half_sure():
    # Very sure, and right in one half only.
    seen = examined([0.999] * 20, [True] * 10 + [False] * 10, lines=1)
    assert seen.calibrated().temperature > 3
    assert examined([0.6] * 20, [True] * 20, lines=1).calibrated().temperature < 1


def test_a_run_finds_the_misuse(made, tmp_path):
    folder, _, trained = made
    assert trained.scores["test_all_uses"] > trained.scores["test_random"]
    assert trained.scores["validation_found"] > 0.5
    (tmp_path / "wrong.py").write_text(WRONG)
    network = load_programs(folder / "run")
    assert network.calibration == read_calibration(folder / "run")
    found = inspect_code(network, tmp_path / "wrong.py", progress=False)
    assert found.detects
    assert (found.uses, found.files) == (3, 1)
    first = found.findings[0]
    assert (first.line, first.name, first.suggestion) == (2, "first", "second")
    assert first.probability > 0.5
    assert first.written == pytest.approx(1 - first.probability)
    right = WRONG.replace("first + first", "first + second")
    (tmp_path / "wrong.py").write_text(right)
    found = inspect_code(network, tmp_path / "wrong.py", progress=False)
    assert found.suspicious(0.5) == []


def test_files_are_looked_at_one_after_another(made, tmp_path):
    folder, _, _ = made
    for number in range(30):
        (tmp_path / f"file{number}.py").write_text(WRONG)
    network = load_programs(folder / "run")
    found = inspect_code(
        network, tmp_path, exclude=("file1*",), wanted=lambda f, _: f.line == 3, progress=False
    )
    assert (found.files, found.uses, len(found.findings)) == (19, 57, 19)


def test_injected_functions(tmp_path):
    code = write_code(tmp_path / "code", files=4)
    made = inject(code, 6, progress=False)
    assert (len(made.functions), made.files) == (6, 2)
    assert all(graph.graph["kind"] == 1 for graph in made.functions)
    assert len(made.clean) == 8
    assert [len(graphs) for graphs in made.blanks] == [3] * 6
    with pytest.raises(DataError, match="--inject is 0"):
        inject(code, 0)


def test_a_run_without_calibration_is_told(made, tmp_path):
    with pytest.raises(DataError, match=r"no calibration\.json: its training has not finished"):
        read_calibration(tmp_path)
    for text in ("{}", '{"temperature": 0.0, "thresholds": {"1": 0.5}, "lines": 3}'):
        (tmp_path / "calibration.json").write_text(text)
        with pytest.raises(ValueError, match=r"calibration\.json"):
            read_calibration(tmp_path)


def test_a_run_of_slots_goes_on_with_slots():
    old = {"data": "code", "hidden": 8}
    asked = PROGRAMS.default()
    assert asked.target == "misuse"
    assert PROGRAMS.settled(asked, None).target == "misuse"
    assert PROGRAMS.settled(asked, old).target == "slot"
    assert PROGRAMS.settled(asked, {**old, "target": "misuse"}).target == "misuse"
    assert PROGRAMS.as_now(old)["target"] == "slot"


def test_compiling_a_detector_is_refused(made):
    _, table, _ = made
    layout = {"form": "banded", "block": 64, "outside": "drop"}
    asked = config(compile="static", layout=dataclasses.replace(config().layout, **layout))
    with pytest.raises(ValueError, match="take --compile eager, or --target slot"):
        train_programs(table, dataclasses.replace(asked, nodes=512), quiet=True)
