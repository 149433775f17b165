"""Runs, plans and studies as pages: what they say, and what damage does not stop them."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from pathlib import Path

import pytest
from hostile_drawings import HOSTILE, SVG
from sound_pages import Looked, assert_is_sound

from weft.errors import DataError
from weft.parallel.cost_model import NETWORKS, Machine, Problem, estimate
from weft.parallel.grid import grids_for
from weft.parallel.method import Method
from weft.report import page_path, write_page
from weft.report.comparison import grouped
from weft.report.record import read_run
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult
from weft_lab.report import Claim, claims_section, markdown_of, write_four_papers


def page_on(*items: Path, out: Path) -> Looked:
    return assert_is_sound(write_page(items, out).read_text(encoding="utf-8"))


def test_a_run(run, tmp_path, awkward) -> None:
    page = page_on(run, out=tmp_path / "page.html")
    assert f"SchNet on {awkward}, to predict u0 in eV: finished after 3 epochs" in page.words
    for words in ("test MAE", "61 s", "Learning rate", "batching.policy", "packed", "torch"):
        assert words in page.words
    assert len(page.all("svg")) == len(page.all("figure")) - 1
    again = tmp_path / "again.html"
    write_page([run], again)
    assert again.read_bytes() == (tmp_path / "page.html").read_bytes()


def test_errors_of_forces_have_their_unit(make_run, tmp_path) -> None:
    scores = {"test_force_mae": 0.25, "test_force_rmse": 0.5, "test_loss": 1.5}
    runs = [make_run(tmp_path / name, **scores) for name in ("one", "two")]
    for run in runs:
        with (run / "metrics.jsonl").open("a") as log:
            for step in (40, 50):
                line = {"step": step, "epoch": 4, "seconds": step, "validation_force_mae": 0.25}
                log.write(json.dumps(line) + "\n")
    words = " ".join(page_on(runs[0], out=tmp_path / "page.html").words.split())
    assert "test force MAE250 meV/Å" in words
    for heading in ("MAE [eV]", "force MAE [meV/Å]", "force RMSE [meV/Å]", "force error [meV/Å]"):
        assert heading in words
    assert "loss [" not in words
    words = " ".join(page_on(*runs, out=tmp_path / "both.html").words.split())
    assert "test force MAE [meV/Å] 250 250" in words


def test_errors_stand_beside_those_of_no_network_and_by_element(make_run, tmp_path) -> None:
    scores = {"test_mae": 0.5, "test_force_mae": 0.25, "test_stress_mae": 0.125}
    scores |= {"test_mae_per_atom": 0.0625}
    trivial = {"test": {"mae": 8.0, "force_mae": 4.0, "stress_mae": 2.0, "mae_per_atom": 1.0}}
    by_element = {"test": {"H": {"mae": 0.75, "trivial": 3.0}, "O": {"mae": 0.0, "trivial": 5.0}}}
    run = make_run(tmp_path / "a", **scores, trivial=trivial, force_mae_by_element=by_element)
    words = " ".join(page_on(run, out=tmp_path / "page.html").words.split())
    assert "test MAE0.5 eV without training (trivial): 8 eV" in words
    assert "stress MAE [meV/Å³]" in words
    assert "MAE per atom [meV/atom]" in words
    assert "H 750 3,000" in words
    assert "test, trivial" in words


def test_a_run_under_way_or_damaged_still_gives_a_page(run, tmp_path) -> None:
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')
    page = page_on(run, out=tmp_path / "page.html")
    assert "not finished, so far to epoch 3, step 30" in page.words
    assert "recent throughput500 graphs/s mean of the epochs so far: 500" in page.words
    assert "The last line of metrics.jsonl is not finished" in page.words
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(f"\0\n[1]\n{text}\n")
    (run / "plan.json").write_text("{")
    (run / "spy.json").write_text('{"orders": [{"order": 1}]}')
    (run / "summary.json").write_text('{"counts": 3, "compilation": [], "communication": "x"}')
    page = page_on(run, out=tmp_path / "page.html")
    assert "plan.json cannot be read" in page.words
    assert "lines of metrics.jsonl cannot be read and are left out, the first is line 1" in (
        page.words
    )


def test_a_run_that_has_logged_nothing(run, tmp_path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").unlink()
    page = page_on(run, out=tmp_path / "page.html")
    assert "not finished" in page.words
    assert page.all("svg") == []


def test_values_that_are_not_finite(run, tmp_path) -> None:
    rows = [{"step": 1, "epoch": 1, "seconds": 1, "loss": None, "lr": 0.0}]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert "Learning rate" in page_on(run, out=tmp_path / "page.html").words


def test_names_are_no_formulas_and_nothing_may_be_zero(make_run, tmp_path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a$\\oops$", "b")]
    for run in runs:
        row = {"step": 1, "epoch": 1, "seconds": 1, "graphs_per_second": 0.0, "train_loss": 1.0}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    page = page_on(*runs, out=tmp_path / "page.html")
    assert "a$\\oops$" in page.words


def test_a_run_of_python_m_weft_can_be_done_again(run, tmp_path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["sessions"][0]["command"] = ["__main__.py", "train", "nodes"]
    (run / "config.json").write_text(json.dumps(config))
    page = page_on(run, out=tmp_path / "page.html")
    assert "python -m weft train nodes" in page.words
    assert "500 nodes/s" in page.words


def test_what_a_run_of_ranks_and_of_supergraphs_says(make_run, tmp_path) -> None:
    kinds = {"all_reduce": 92256.0, "all_to_all": 62496.0}
    communication = {
        "bytes": kinds,
        "predicted_bytes": kinds,
        "seconds": {"communication": 0.03, "compute": 0.01},
        "peak": 3e7,
        "predicted": 1e7,
    }
    compilation = {
        "mode": "static",
        "compilations": 2,
        "recompiles": 1,
        "compile_seconds": 12.5,
        "causes": ["first call", "nodes 10 -> <12>"],
        "graph_breaks": [],
        "eager_calls": 0,
    }
    folder = make_run(
        tmp_path / "ranks",
        communication=communication,
        compilation=compilation,
        grid="1d",
        ranks=2,
        fill={"node_fill": 0.966, "edge_fill": 0.77, "distinct_shapes": 1},
        batching_share=0.01,
    )
    counts = [[1, 0], [0, 2]]
    orders = [
        {"order": name, "bandwidth": width, "near": [0.5, 1.0], "counts": counts}
        for name, width in (("order of the text", 1542), ("rcm order", 148))
    ]
    spy = {"graphs": 9, "nodes": 2000, "edges": 7000, "distances": [8, 512], "orders": orders}
    (folder / "spy.json").write_text(json.dumps(spy))
    page = page_on(folder, out=tmp_path / "page.html")
    for words in (
        "What the formulas predict is what was recorded, to the byte.",
        "1d on 2 ranks",
        "75.0%",
        "96.6%",
        "12.5 s",
        "nodes 10 -> <12>",
        "order of the text: bandwidth 1,542",
    ):
        assert words in page.words


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"weights": 2176, "active": 205}, "of them active 205"),
        # As older runs have it.
        ({"weights": 2176, "nonzero": 137}, "of them not 0 137"),
    ],
)
def test_active_weights_of_a_run(make_run, tmp_path, counts, said) -> None:
    run = make_run(tmp_path / "run", counts=counts)
    row = {"step": 30, "epoch": 3, "seconds": 30, "sparsity": 0.906}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    words = " ".join(page_on(run, out=tmp_path / "page.html").words.split())
    assert f"weights 2,176 {said}" in words


def test_runs_side_by_side(make_run, tmp_path) -> None:
    slow = make_run(tmp_path / "slow", rate=1e-3)
    fast = make_run(tmp_path / "fast", rate=1e-2, epochs=4)
    page = page_on(slow, fast, out=tmp_path / "page.html")
    assert "2 runs compared" in page.words
    assert "Settings that are not the same in all" in page.words
    assert page.words.index("Side by side") < page.words.index("What came out")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    # exp(-0.01 * 40) * 2, the lower error.
    assert "<strong>1.341</strong>" in text
    assert "<strong>1.941</strong>" not in text


def test_what_only_rounding_tells_apart_is_not_better_and_ranks_are_a_difference(
    make_run, tmp_path
) -> None:
    runs = [
        make_run(tmp_path / f"on-{ranks}", ranks=ranks, test_mae=0.1 + ranks * 1e-15)
        for ranks in (2, 4)
    ]
    page = page_on(*runs, out=tmp_path / "page.html")
    assert page.all("strong") == []
    assert "ranks 2 4" in " ".join(page.words.split())


def test_unlike_runs_are_compared_in_tables_of_their_own(make_run, tmp_path) -> None:
    alike = [make_run(tmp_path / name, rate=rate) for name, rate in (("a", 1e-3), ("b", 1e-2))]
    other = make_run(tmp_path / "c", test_mae=None, test_accuracy=0.75, unit="")
    config = json.loads((other / "config.json").read_text())
    config["config"] |= {"data": "cora", "target": None}
    (other / "config.json").write_text(json.dumps({**config, "recipe": "nodes"}))
    page = page_on(*alike, other, out=tmp_path / "page.html")
    words = " ".join(page.words.split())
    assert "Only runs of one recipe on the same data and target are compared" in words
    assert "c nodes, cora test accuracy 75.0%" in words
    # The table of the two has nothing of the third.
    table = words[words.index("Final scores") :].partition("Settings that")[0]
    assert "test MAE [eV]" in table
    assert "accuracy" not in table
    assert "–" not in table


def test_a_task_is_one_target_in_one_unit(make_run, tmp_path) -> None:
    targets = {"a": ("u0", "eV"), "b": ("u", "eV"), "c": ("u0", ""), "d": ("u0", "kcal/mol")}
    runs = {}
    for name, (target, unit) in targets.items():
        folder = make_run(tmp_path / "runs" / name, unit=unit)
        config = json.loads((folder / "config.json").read_text())
        config["config"] |= {"data": "qm9", "target": target}
        (folder / "config.json").write_text(json.dumps(config))
        runs[name] = read_run(folder)
    for names in ("abcd", "cadb"):
        groups = grouped([runs[name] for name in names], names)
        assert sorted((group.title, sorted(group.runs)) for group in groups) == [
            ("own model, qm9, u [eV]", ["b"]),
            ("own model, qm9, u0 [eV]", ["a", "c"]),
            ("own model, qm9, u0 [kcal/mol]", ["d"]),
        ]
    words = " ".join(page_on(tmp_path / "runs", out=tmp_path / "page.html").words.split())
    # What sighted readers and screen readers see, of the one board with two rows.
    assert words.count("press a heading to sort by it") == 2


def test_runs_of_one_name_are_told_apart(make_run, tmp_path) -> None:
    runs = [make_run(tmp_path / place / "run") for place in ("a", "b")]
    page = page_on(*runs, out=tmp_path / "page.html")
    assert "a/run" in page.words
    assert "Their settings are the same." in page.words


def test_a_plan(plan, tmp_path) -> None:
    page = page_on(plan, out=tmp_path / "page.html")
    for words in (
        "Compiling costs 3 s & saves less.",
        "out of memory",
        "not tried: no time was left",
        "weft train molecules --plan",
        "2.86×",
        "900 µs – 1.2 ms",
        "a <fast> one",
    ):
        assert words in page.words
    assert len(page.all("svg")) == 2


def test_a_plan_inside_a_run(run, plan, tmp_path) -> None:
    shutil.copy(plan, run / "plan.json")
    page = page_on(run, out=tmp_path / "page.html")
    assert "Plan: time per graph" in page.words
    assert "Everything that was considered" in page.words


def test_a_plan_by_formulas(tmp_path) -> None:
    problem = Problem(nodes=1000, edges=9000, widths=(32, 16, 4))
    machine = Machine(name="ethernet-10", link=NETWORKS["ethernet-10"])
    estimates = [
        estimate(problem, grid, Method(), machine).to_json()
        for ranks in (4, 8, 16)
        for grid in grids_for(ranks)
    ]
    link = {"alpha": machine.link.alpha, "beta": machine.link.beta}
    value = {
        "schema": "weft plan 1",
        "command": "weft plan full-graph --nodes 1000",
        "problem": {"nodes": 1000, "edges": 9000, "widths": [32, 16, 4], "model": "gcn"},
        "machine": {
            "name": "<here>",
            "link": link,
            "flops": machine.flops,
            "spmm_bytes": machine.spmm_bytes,
        },
        "estimates": estimates,
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(value))
    page = page_on(path, out=tmp_path / "page.html")
    assert "GCN of widths 32-16-4 on 1,000 nodes and 9,000 nonzeros" in page.words
    assert len(page.all("svg")) == 2
    path.write_text(json.dumps({**value, "estimates": [{}]}))
    with pytest.raises(DataError, match="its fields are not those of one"):
        write_page([path], tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize("kind", ["run", "plan", "study"])
def test_pages_begin_with_figures_then_pictures_then_tables(kind, request, tmp_path) -> None:
    text = write_page([request.getfixturevalue(kind)], tmp_path / "page.html").read_text("utf-8")
    headings = re.findall(r'<h2 id="[^"]*">([^<]*)</h2>', text)
    short = headings[0] == "In short"
    assert headings[short] == "Pictures"
    assert headings[-1] == "Settings and commands"
    before, _, after = text.partition(">Settings and commands</h2>")
    pictures = re.compile(r'<svg role="img"|<img ')
    # Of the tables before the last picture all are folded away under the pictures.
    ends = max(found.end() for found in pictures.finditer(before))
    assert before[:ends].count("<table") == before[:ends].count("<summary>Numbers")
    assert pictures.search(after) is None


def test_the_claims_of_a_study_come_first(study, tmp_path) -> None:
    claims = [
        Claim("x", "", "Packing pays", "2.7×", "1.5×", holds=True),
        Claim("x", "", "Sorting pays", "2×", "0.9×", holds=False),
        Claim("x", "", "Waiting pays", "left open", "1×"),
    ]
    section = claims_section(claims)
    text = (study / "results.md").read_text()
    (study / "results.md").write_text("\n".join([text, *markdown_of([section])]))
    words = " ".join(page_on(study, out=tmp_path / "page.html").words.split())
    assert "claims that hold here1 of 2" in words
    assert words.index("Packing pays: 1.5×; published: 2.7×. Holds.") < words.index("Pictures Spy")


def test_a_study(study, tmp_path) -> None:
    page = page_on(study, out=tmp_path / "page.html")
    for words in ("Study of <nothing>", "dynamic <old>", "Packed is fastest; published: 1.4."):
        assert words in page.words
    assert len(page.all("img")) == 2
    for image, (path, kind) in zip(
        page.all("img"), (("spy.png", "png"), ("time.svg", "svg+xml")), strict=True
    ):
        assert image["alt"] == path.partition(".")[0].capitalize()
        assert image["src"].startswith(f"data:image/{kind};base64,")
        assert b64decode(image["src"].partition(",")[2]) == (study / path).read_bytes()
    (study / "time.svg").write_bytes(b"<svg" + b" " * 4_000_000)
    (study / "results.md").unlink()
    page = page_on(study, out=tmp_path / "page.html")
    assert "The plot time.svg is left out: it is larger than 4,000,000 bytes" in page.words
    assert "has not come to its end" in page.words


def test_a_studys_drawings_are_images_whatever_they_hold(study, tmp_path) -> None:
    for number, drawing in enumerate(HOSTILE):
        (study / f"hostile_{number:02}.svg").write_text(drawing)
    page = page_on(study, out=tmp_path / "page.html")
    assert page.all("svg") == []
    images = [image["src"].partition(",")[2] for image in page.all("img")]
    assert [b64decode(data).decode() for data in images[: len(HOSTILE)]] == list(HOSTILE)


@pytest.mark.parametrize(
    "text", ["", "<svg viewBox='0 0 1 1'>", "<svg><rect/></svg>", SVG.replace("viewBox", "id")]
)
def test_what_is_no_drawing_is_left_out(study, tmp_path, text) -> None:
    (study / "time.svg").write_text(text)
    page = page_on(study, out=tmp_path / "page.html")
    assert "The plot time.svg is left out: it holds no drawing of a known size" in page.words
    assert len(page.all("img")) == 1


def test_papers(study, tmp_path) -> None:
    claims = [
        Claim(
            paper=paper,
            claim="Packing <pays>",
            published="2.7×",
            measured=f"{place}.5×",
            command="weft study batching --quick",
            holds=(True, False, None)[place],
        )
        for place, paper in enumerate(["Speckhard (2025)", "Balog (2019)", "Speckhard (2025)"])
    ]
    path = tmp_path / "papers.html"
    assert write_four_papers(claims, [study], path, missing={"all": "no <data>"}) == path
    page = assert_is_sound(path.read_text(encoding="utf-8"))
    for words in (
        "holds",
        "does not hold",
        "not claimed",
        "beyond the papers",
        "no <data>",
        "Packing <pays>",
    ):
        assert words in page.words
    assert page.words.count("Claims of Speckhard (2025)") == 1


def test_a_benchmark(tmp_path) -> None:
    timed = {
        "weft": CandidateResult(samples=[0.004, 0.005, 0.006], peak_bytes=200_000_000),
        "weft, compiled": CandidateResult(samples=[0.003, 0.004, 0.004]),
        "torch <geometric>": CandidateResult(samples=[0.01, 0.012, 0.02]),
        "jraph": CandidateResult(absent="jraph is not installed"),
    }
    counted = {"weft 1d": CandidateResult(samples=[2.0], figures={"GB": 2.0, "% apart": 0.1})}
    cases = [
        CaseResult(case="a step", what="32 molecules", unit="s", candidates=timed, says=["So."]),
        CaseResult(case="bytes", what="P = 64", unit="GB", candidates=counted, missed=["half"]),
    ]
    path = tmp_path / "bench.json"
    BenchResult(name="molecules", cases=cases, command="weft bench x", machine={}).save(path)
    assert page_path([path]) == tmp_path / "bench.html"
    page = page_on(path, out=tmp_path / "page.html")
    words = " ".join(page.words.split())
    for said in (
        "a step4 ms weft, compiled; torch <geometric> takes 3 times as long",
        "Missed: half",
        "median [ms]",
        "jraph is not installed",
        "So.",
        "weft bench x",
    ):
        assert said in words
    assert words.index("Pictures a step") < words.index("least to largest [ms]")
    assert len(page.all("svg")) == 1
    path.write_text('{"schema": "weft bench 1", "name": "x", "cases": 3}')
    with pytest.raises(DataError, match="is a damaged benchmark"):
        write_page([path], tmp_path / "page.html")


def test_where_pages_go(run, plan, study) -> None:
    assert page_path([run]) == run / "report.html"
    assert page_path([plan]) == plan.parent / "plan.html"
    assert page_path([run, study]) == Path("report.html")


def test_a_leader_board(make_run, tmp_path) -> None:
    folder = tmp_path / "runs"
    rates = {"b": 2e-3, "a": 1e-3, "c": 4e-3}
    for name, rate in rates.items():
        trivial = {"test": {"mae": 3.0}}
        make_run(folder / name, rate=rate, trivial=trivial)
    going_on = make_run(folder / "d")
    (going_on / "summary.json").unlink()
    make_run(folder / "ensemble" / "member-0")
    broken = make_run(folder / "e")
    (broken / "config.json").write_text("{")
    page = page_on(folder, out=folder / "report.html")
    words = " ".join(page.words.split())
    assert "5 runs of 1 task" in words
    assert "best test MAE1.774 eV c; without training (trivial): 3 eV" in words
    assert "config.json is damaged" in words
    # The best first; links to pages that are there.
    links = [each["href"] for each in page.all("a") if not each["href"].startswith("#")]
    assert links[:3] == ["c/report.html", "b/report.html", "a/report.html"]
    assert all((folder / link).is_file() for link in links)
    headings = [each["value"] for each in page.all("input") if each["type"] == "radio"]
    assert headings == [str(number) for number in range(len(headings))]
    assert "learning_rate" in words
    # A page that is newer than its run is left as it is.
    (folder / "a" / "report.html").write_text("kept")
    (folder / "b" / "summary.json").touch()
    old = (folder / "b" / "report.html").stat().st_mtime_ns
    page_on(folder, out=folder / "report.html")
    assert (folder / "a" / "report.html").read_text() == "kept"
    assert (folder / "b" / "report.html").stat().st_mtime_ns > old


def test_what_is_none_of_these(tmp_path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    for item in (tmp_path, tmp_path / "notes.json"):
        with pytest.raises(
            DataError, match=r"neither a run .* a study .* with runs, a plan .* nor a bench"
        ):
            write_page([item], tmp_path / "page.html")
    with pytest.raises(DataError, match="does not exist"):
        write_page([tmp_path / "nothing"], tmp_path / "page.html")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json is damaged"):
        write_page([tmp_path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_run_whose_files_are_damaged_has_a_page(run, tmp_path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1' + "0" * 400 + ', "loss": 1}\n' + "[" * 9999 + "\n{}\n")
    (run / "summary.json").write_text("[" * 9999)
    page = page_on(run, out=tmp_path / "page.html")
    assert "summary.json cannot be read and is left out" in page.words
    assert "2 of" in page.words
