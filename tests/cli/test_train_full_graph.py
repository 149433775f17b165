"""`weft train full-graph` and `weft predict` of such a run: alone, launched, and under torchrun."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.graphs import open_table, write_table
from weft.sources import planted_partition
from weft.training import read_metrics
from weft.training.checkpoint import load_checkpoint

SECONDS = 600
TRAIN = ("train", "full-graph", "--epochs", "6", "--checkpoint-every", "2", "--quiet")


def losses(folder: Path) -> list[float]:
    lines = read_metrics(folder)
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["train_loss"] for line in lines]


def read_csv(name: str) -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_trains_with_several_ranks_and_predicts(weft, tmp_path, small_cora):
    said = weft(*TRAIN, "--ranks", "4", "--grid", "2d", "--partition", "random")
    assert (said.code, said.err) == (0, "")
    assert "300 nodes" in said.out
    assert "grid: 2d, 2x2x1, 4 ranks: as asked" in said.out
    assert "partition: random, 2 blocks, " in said.out
    assert "cora: finished" in said.out
    assert all(word in said.out for word in ("validation", "all_to_all", "in all", "MB of memory"))
    run = Path("runs/full-graph-cora")
    assert f"weft predict {run}" in said.out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["grid"], summary["ranks"], summary["stopped"]) == ("2d", 4, "finished")
    assert f"{summary['test_accuracy']:.1%}" in said.out
    assert sorted(p.name for p in (run / "logs").iterdir()) == [
        "launcher.log",
        *(f"rank-{rank}.log" for rank in range(4)),
    ]
    alone = weft(*TRAIN, "--out", "alone")
    assert "grid: 1d, 1x1x1, 1 rank: the only one that fits" in alone.out
    np.testing.assert_allclose(losses(run), losses(Path("alone")), rtol=1e-5)
    for folder in (run, Path("alone")):
        assert json.loads((folder / "config.json").read_text())["recipe"] == "full-graph"

    again = weft(*TRAIN, "--resume", "--ranks", "2", "--epochs", "8", "--device", "cpu")
    assert again.code == 0
    assert "8 epochs in " in again.out
    assert len(losses(run)) == 8

    said = weft("predict", run, "--ranks", "2", "--out", "two.csv")
    assert said.code == 0, said.err
    assert "... and 290 more. Written to two.csv." in said.out
    assert weft("predict", run).code == 0
    rows = read_csv("two.csv")
    assert [int(row["node"]) for row in rows] == list(range(300))
    one = read_csv("full-graph-cora-predicted.csv")
    assert [row["class"] for row in one] == [row["class"] for row in rows]
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    right = np.mean([int(row["class"]) for row in rows] == _classes())
    whole = sum(summary[f"{part}_accuracy"] * count for part, count in summary["counts"].items())
    assert abs(right - whole / 300) < 0.1
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def _classes() -> np.ndarray:
    return planted_partition(300, 3, mean_degree=6, homophily=0.9, num_features=24, seed=1).nodes[
        "y"
    ]


@pytest.fixture
def own_graph(tmp_path: Path) -> list[str]:
    """The words that name a graph of the user's own."""
    graph = planted_partition(60, 2, mean_degree=5, homophily=0.9, num_features=4, seed=3)
    one_way = graph.senders < graph.receivers
    pairs = np.stack([graph.senders, graph.receivers], 1)[one_way]
    (tmp_path / "edges.txt").write_text("".join(f"{s} {r}\n" for s, r in pairs))
    np.save(tmp_path / "x.npy", graph.nodes["x"])
    np.save(tmp_path / "y.npy", graph.nodes["y"])
    return ["--data", "edges.txt", "--features", "x.npy", "--labels", "y.npy"]


def test_a_graph_of_the_users_own(weft, tmp_path, own_graph):
    words = [*TRAIN, *own_graph, "--split", "0.6", "0.2", "0.2"]
    said = weft(*words)
    assert said.code == 0, said.err
    assert "edges.txt: 60 nodes" in said.out
    cached = list((tmp_path / "data").glob("full-graph-edges-*.weft"))
    assert len(cached) == 1
    assert weft(*words, "--out", "second").code == 0
    assert list((tmp_path / "data").glob("full-graph-edges-*.weft")) == cached
    # Another graph, without classes, and another number of nodes.
    Path("new.txt").write_text("0 1\n1 2\n")
    np.save("new.npy", np.load("x.npy")[:5])
    said = weft("predict", "runs/full-graph-edges", "new.txt", "--features", "new.npy")
    assert said.code == 0, said.err
    assert len(read_csv("new-predicted.csv")) == 5


def test_labels_and_numbers_of_nodes(weft, mistake, tmp_path, own_graph):
    plain = ("--data", "edges.txt", "--features", "x.npy", "--split", "0.6", "0.2", "0.2")
    y, rng = np.load("y.npy"), np.random.default_rng(0)
    np.save("labels.npy", np.stack([y == 0, y == 1, rng.random(60) < 0.5], 1))
    np.save("numbers.npy", 100.0 * y + rng.normal(size=60))
    said = weft(
        *(*TRAIN, *plain, "--labels", "labels.npy", "--class-weights", "balanced"),
        *("--monitor", "validation_auc", "--out", "labels"),
    )
    assert said.code == 0, said.err
    assert all(word in said.out for word in ("3 labels", "F1", "AUC"))
    assert "validation_auc" in read_metrics(tmp_path / "labels")[-1]
    assert weft("predict", "labels", "--ranks", "2", "--out", "labels.csv").code == 0
    rows = read_csv("labels.csv")
    assert list(rows[0]) == ["node", "label_0", "label_1", "label_2"]
    assert all(0 <= float(row["label_1"]) <= 1 for row in rows)
    numbers = (*TRAIN, *plain, "--labels", "numbers.npy", "--epochs", "60")
    said = weft(*numbers, "--out", "numbers", "--learning-rate", "0.05", "--dropout", "0")
    assert said.code == 0, said.err
    assert all(word in said.out for word in ("1 numbers", "MAE", "RMSE", "R²"))
    summary = json.loads(Path("numbers/summary.json").read_text())
    # In the target's own unit, and better than the mean of the training nodes.
    assert 0 < summary["train_mae"] < 50 < summary["train_rmse"] + 50
    assert summary["train_r2"] > 0.5
    # Another graph, of which nothing is known.
    Path("new.txt").write_text("0 1\n1 2\n")
    np.save("new.npy", np.load("x.npy")[:5])
    said = weft("predict", "numbers", "new.txt", "--features", "new.npy")
    assert said.code == 0, said.err
    values = [float(row["value_0"]) for row in read_csv("new-predicted.csv")]
    assert len(values) == 5
    assert max(map(abs, values)) > 2
    for words, text in (
        (
            ("--monitor", "validation_f1"),
            "monitor is 'validation_f1', but the target is regression",
        ),
        (("--class-weights", "balanced"), "the target is numbers; leave them out"),
        (("--target", "classes"), "a class is a whole number"),
        (("--class-weights", "1", "-2"), "class_weights has '-2'"),
    ):
        assert text in mistake(*numbers, *words, "--out", "wrong"), words
    assert not Path("wrong").exists()


def test_an_edge_column_weighs_edges(weft, mistake, tmp_path):
    graph = planted_partition(60, 2, mean_degree=5, homophily=0.9, num_features=4, seed=3)
    rng = np.random.default_rng(0)
    pairs = graph.senders + graph.receivers + graph.senders * graph.receivers
    both = np.stack([pairs % 7 + 0.5, rng.random(graph.num_edges)], 1)
    write_table("own.weft", [replace(graph, edges={"bond": both})])
    write_table("plain.weft", [replace(graph, edges={"weight": both[:, 0]})])
    for name, words in (
        ("given", ("--data", "plain.weft")),
        ("named", ("--data", "own.weft", "--edge-weight", "bond:0")),
        ("none", ("--data", "plain.weft", "--edge-weight", "none")),
    ):
        said = weft(*TRAIN, *words, "--split", "0.6", "0.2", "0.2", "--out", name)
        assert said.code == 0, said.err
    assert losses(Path("named")) == losses(Path("given"))
    assert losses(Path("none")) != losses(Path("given"))
    for column, text in (("bond", "has 2 numbers an edge; name one"), ("b", "no edge column 'b'")):
        assert text in mistake(*TRAIN, "--data", "own.weft", "--edge-weight", column)


def test_a_weighted_list_with_a_header(weft, mistake, tmp_path, own_graph):
    pairs = np.loadtxt("edges.txt", dtype=int)
    weights = np.random.default_rng(0).integers(1, 9, len(pairs)) / 4
    rows = [f"{s},{r},{w}\n" for (s, r), w in zip(pairs, weights, strict=True)]
    Path("edges.csv").write_text("source,target,weight\n" + "".join(rows))
    words = [*TRAIN, *own_graph, "--data", "edges.csv", "--split", "0.6", "0.2", "0.2"]
    assert "2 tokens (src, dst) expected, more found: name them all (columns, " in mistake(*words)
    words += ["--columns", "src", "dst", "weight", "--normalisation", "none"]
    said = weft(*words)
    assert said.code == 0, said.err
    (path,) = (tmp_path / "data").glob("full-graph-edges-*.weft")
    graph = open_table(path)[0]
    matrix = np.zeros((60, 60))
    matrix[graph.receivers, graph.senders] = graph.edges["weight"]
    expected = np.zeros((60, 60))
    expected[tuple(pairs.T)] = expected[tuple(pairs.T[::-1])] = weights
    np.testing.assert_array_equal(matrix, expected)
    s, r = pairs[0]
    Path("edges.csv").write_text("source,target,weight\n" + "".join(rows) + f"{r},{s},7.5\n")
    said = mistake(*words, "--out", "other")
    assert f"gives nodes {s} and {r} the weights {weights[0]:g} and 7.5; give a pair one" in said


def test_mistakes_take_one_sentence(weft, mistake, tmp_path, own_graph, small_cora):
    assert "the grid 2d needs q² ranks, not 6" in mistake(*TRAIN, "--grid", "2d", "--ranks", "6")
    start = ("train", "full-graph")
    assert "60 nodes for 61 ranks" in mistake(
        *start, *own_graph, "--split", "0.6", "0.2", "0.2", "--ranks", "61"
    )
    assert "--split 0.6 0.2 0.2" in mistake(*start, *own_graph)
    said = mistake(*start, "--data", "edges.txt")
    assert "holds edges alone; to classify nodes, give --features FILE.npy" in said
    assert "neither a file or folder nor one of cora" in mistake(*start, "--data", "nothing")
    assert "device is cuda, but torch finds no GPU here" in mistake(*start, "--device", "cuda")
    assert "'qm9' is molecules" in mistake(*start, "--data", "qm9")
    assert "has no node column 'x'" in mistake(*start, "--data", "rmat")
    assert "--init-from nothing does not exist" in mistake(*start, "--init-from", "nothing")
    np.save("y.npy", np.zeros(59, dtype=np.int64))
    said = mistake(*start, *own_graph)
    assert "y.npy has shape [59]; there are 60 nodes, so [60] is needed" in said
    np.save("y.npy", np.array([{}] * 60), allow_pickle=True)
    assert "y.npy is not a .npy file of numbers" in mistake(*start, *own_graph)
    np.save("y.npy", np.zeros(60, dtype=np.int64))
    Path("edges.txt").write_text("0 60\n")
    assert "edges.txt names node 60; x.npy has 60 rows" in mistake(*start, *own_graph)
    assert not Path("runs").exists()
    assert weft(*TRAIN, "--out", "run").code == 0
    assert "holds a run already" in mistake(*TRAIN, "--out", "run", "--ranks", "2")
    assert "no --forces, only --out, --ranks" in mistake("predict", "run", "--forces")
    assert "written as .csv" in mistake("predict", "run", "--out", "p.txt")
    assert "nowhere holds no run of `weft train`" in mistake("predict", "nowhere")
    Path("new.txt").write_text("0 1\n")
    np.save("new.npy", np.zeros((2, 3), dtype=np.float32))
    assert "has 3 features a node, the network of run reads 24" in mistake(
        "predict", "run", "new.txt", "--features", "new.npy"
    )


def test_print_config(weft, tmp_path):
    said = weft("train", "full-graph", "--grid", "2d", "--ranks", "4", "--print-config")
    printed = json.loads(said.out)
    assert (printed["grid"], printed["ranks"]) == ("2d", 4)
    assert printed["method"]["exchange"] == "rows"
    assert list(tmp_path.iterdir()) == []


def torchrun(*options: str, words: tuple[str, ...] = TRAIN) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "weft", *words]


def environment(folder: Path) -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "WEFT_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"}


def hosts(tmp_path: Path, small_cora: Path) -> list[Path]:
    """Two folders as on two hosts that share no files: each has the data, one will have the run."""
    found = [tmp_path / "first", tmp_path / "second"]
    for folder in found:
        shutil.copytree(small_cora, folder / "data" / small_cora.name)
    return found


def agents(commands: list[list[str]], folders: list[Path], names: list[str]) -> list[str]:
    """What two agents of torchrun print, each in its folder."""
    children = []
    try:
        for command, folder, name in zip(commands, folders, names, strict=True):
            settings = {**environment(folder), "GLOO_SOCKET_IFNAME": name}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            children.append(subprocess.Popen(command, cwd=folder, env=settings, **pipes))
        said = [child.communicate(timeout=SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdout.close()
    assert [child.returncode for child in children] == [0, 0], said
    return said


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them, 10.231.77.1 and .2; none if not allowed."""
    names = [f"weft{os.getpid()}{end}" for end in "ab"]
    steps = [
        *(f"netns add {name}" for name in names),
        f"link add {names[0]} netns {names[0]} type veth peer name {names[1]} netns {names[1]}",
        *(
            f"-n {name} {words}"
            for number, name in enumerate(names, 1)
            for words in (
                f"addr add 10.231.77.{number}/24 dev {name}",
                f"link set {name} up",
                "link set lo up",
            )
        ),
    ]

    def ip(words: str) -> bool:
        done = subprocess.run(["ip", *words.split()], capture_output=True, timeout=600)
        return done.returncode == 0

    try:
        yield names if shutil.which("ip") and all(map(ip, steps)) else []
    finally:
        for name in names:
            if shutil.which("ip"):
                ip(f"netns del {name}")


def on_two_hosts(words: tuple[str, ...], spaces: list[str]) -> list[list[str]]:
    """The commands that start a rank on each of two hosts."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    commands = []
    for number in (1, 2):
        command = torchrun(
            *("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{'10.231.77.1' if spaces else '127.0.0.1'}:{port}"),
            *("--local-addr", f"10.231.77.{number}" if spaces else "127.0.0.1"),
            # By its name, which is the same in both, a host would not know that it is meant.
            *("--rdzv-id", "two", "--rdzv-conf", f"is_host={int(number == 1)}"),
            words=words,
        )
        inside = ["ip", "netns", "exec", spaces[number - 1]] if spaces else []
        commands.append([*inside, *command])
    return commands


def test_two_hosts_with_torchrun(weft, tmp_path, small_cora, spaces):
    folders = hosts(tmp_path, small_cora)
    names = spaces or ["lo", "lo"]
    said = agents(on_two_hosts(TRAIN, spaces), folders, names)
    assert weft(*TRAIN, "--out", "alone").code == 0
    assert sum("cora: finished" in text for text in said) == 1
    ran = [folder for folder in folders if (folder / "runs").exists()]
    assert len(ran) == 1
    found = losses(ran[0] / "runs" / "full-graph-cora")
    np.testing.assert_allclose(found, losses(tmp_path / "alone"), rtol=1e-5)
    # The run is copied to the other host; both predict, and rank 0 alone writes.
    (other,) = {*folders} - {*ran}
    shutil.copytree(ran[0] / "runs", other / "runs")
    predict = ("predict", "runs/full-graph-cora", "--out", "two.csv")
    said = agents(on_two_hosts(predict, spaces), folders, names)
    assert sum("Written to two.csv" in text for text in said) == 1
    (written,) = [folder / "two.csv" for folder in folders if (folder / "two.csv").exists()]
    assert weft("predict", ran[0] / "runs" / "full-graph-cora", "--out", "one.csv").code == 0
    two, one = read_csv(str(written)), read_csv("one.csv")
    assert [(row["node"], row["class"]) for row in two] == [(r["node"], r["class"]) for r in one]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_takes_one_sentence(weft, tmp_path, small_cora, small_disk, ranks):
    disk = small_disk(500)
    words = [*TRAIN, "--hidden", "512", "--out", "disk/run", "--ranks", str(ranks)]
    # In a process, which has all that its ranks write.
    said = subprocess.run(
        [sys.executable, "-m", "weft", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    who = "rank 0: " if ranks > 1 else ""
    assert said.stderr == (
        f"weft: {who}cannot write disk/run/last.pt: No space left on device; the file that was "
        "there is kept; make room or choose another folder\n"
    )
    assert said.returncode == 2
    assert load_checkpoint(disk / "run" / "last.pt")["progress"]["step"] == 2
    # With room it goes on.
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    assert weft(*words, "--resume", "--ranks", "1").code == 0
    assert len(losses(disk / "run")) == 6


def test_ctrl_c_says_how_to_go_on(tmp_path, small_cora):
    words = ["train", "full-graph", "--epochs", "100000", "--ranks", "2", "--checkpoint-every", "5"]
    command = [sys.executable, "-m", "weft", *words, "--out", "run", "--quiet"]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + SECONDS
        while not (tmp_path / "run" / "weights.safetensors").exists():
            assert time.monotonic() < end
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.05)
        # As a terminal does it: to all of them at once.
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=SECONDS)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, err
    assert "interrupted by SIGINT after epoch " in out
    assert "--resume" in out
    assert "Traceback" not in out + err
    kept = load_checkpoint(tmp_path / "run" / "last.pt")["progress"]
    assert f"after epoch {kept['epoch']}, step {kept['step']};" in out
    assert kept["step"] >= 5
    assert len(losses(tmp_path / "run")) == kept["epoch"]
