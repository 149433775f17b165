"""The recipe for the classes of nodes, and that of citation graphs for older runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.recipes.nodes.config import PUBLISHED, NodesConfig
from weft.recipes.recipe import DataOptions, PredictOptions, StandardRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.graphs import Graph
    from weft.parallel.world import World
    from weft.recipes.nodes.candidates import NodesTask
    from weft.recipes.nodes.training import PreparedNodes, TrainedNodes
    from weft.training import Run


@dataclass(frozen=True, kw_only=True)
class NodesDataOptions(DataOptions):
    """Where the graph and its classes are read from.

    Attributes:
        labels: The classes of an edge list of your own: a file with the lines node label.
    """

    labels: Path | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class NodesData:
    """A graph that was read and made ready.

    Attributes:
        graph: with classes.
        prepared: what is trained on; a plan changes nothing of it but its configuration.
    """

    graph: Graph
    prepared: PreparedNodes


class NodesRecipe(StandardRecipe):
    """The class of a node."""

    help = """
    Train a network to tell the class of a node.

    A GCN on features, or a feed-forward network on embeddings of walks. An edge list of your own
    has the lines src dst time: its walks follow the times. Examples:
      weft train nodes --data cora --sparsify rigl --sparsity 0.9
      weft train nodes --data pubmed --split public --learning-rate 0.01 --schedule.shape constant
      weft train nodes --data patent --files FOLDER --model fnn
      weft train nodes --data my_edges.txt --labels my_labels.txt --model fnn
      weft train nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl --form sparse
    """
    plan_help = """
    Measure how to train on the classes of nodes fastest: dense or sparse layers, threads.

    Takes the options of `weft train nodes`. Example:
      weft plan nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl
    """
    kind: ClassVar[str | None] = "nodes"
    trains, counts = "Classifier of nodes", "nodes"
    source = NodesDataOptions
    common: ClassVar[tuple[str, ...]] = (
        *("data", "model", "split", "hidden", "sparsify", "sparsity", "form"),
        *("learning_rate", "epochs"),
    )
    shares_batches = True
    before: ClassVar[dict[str, Any]] = {"patience": None, "input_dropout": None}

    def default(self) -> NodesConfig:
        """The configuration that a newcomer gets."""
        return NodesConfig()

    def settled(self, config: NodesConfig, earlier: Mapping[str, Any] | None = None) -> NodesConfig:
        """The configuration with the model's own defaults."""
        return config.settled()

    def read(self, config: NodesConfig, source: NodesDataOptions, *, progress: bool) -> NodesData:
        """The graph with classes, split, and what the network reads."""
        from weft.recipes.nodes.training import prepare_nodes
        from weft.recipes.recipe_data import read_labelled_graph

        graph = read_labelled_graph(
            config.data,
            labels=source.labels,
            files=source.files,
            data_dir=source.data_dir,
            progress=progress,
        )
        return NodesData(graph=graph, prepared=prepare_nodes(graph, config))

    def plan_task(self, data: NodesData, config: NodesConfig) -> NodesTask:
        """The form of the layers, and threads."""
        from weft.recipes.nodes.candidates import NodesTask

        return NodesTask(data.prepared, self.name)

    def prepare(
        self, data: NodesData, config: NodesConfig, *, world: World, earlier: Path | None
    ) -> PreparedNodes:
        """What was prepared with the data, with the settings of the plan."""
        from weft.recipes.nodes.training import check_ranks

        check_ranks(config, world)
        return replace(data.prepared, config=config)

    def checksums(self, data: NodesData, config: NodesConfig) -> dict[str, str]:
        """Of edges and columns."""
        from weft.graphs.checksums import graph_checksums

        return graph_checksums(data.graph)

    def train(
        self,
        prepared: PreparedNodes,
        *,
        run: Run,
        init_from: Path | None,
        world: World,
        quiet: bool,
    ) -> TrainedNodes:
        """Train the network, and time a step of it if it is sparse."""
        from weft.recipes.nodes.training import train_nodes

        return train_nodes(
            prepared, run=run, init_from=init_from, world=world, quiet=quiet, measure_step=True
        )

    def summary(self, trained: TrainedNodes, prepared: PreparedNodes) -> dict[str, Any]:
        """Accuracy with intervals, losses, counts and costs."""
        return {
            "accuracy": {name: asdict(score) for name, score in trained.scores.items()},
            **{f"{name}_loss": value for name, value in trained.losses.items()},
            "counts": trained.counts,
            "embedding_seconds": prepared.seconds,
            "guess": trained.guess,
            "step_costs": None if trained.costs is None else asdict(trained.costs),
        }

    def show(
        self, trained: TrainedNodes, prepared: PreparedNodes, folder: Path, console: Console
    ) -> None:
        """Print the accuracy, the sparsity with its costs, and where everything is."""
        from weft.recipes.output import (
            costs_sentences,
            print_scores,
            time_sentence,
            weights_sentence,
            where,
        )

        result, counts, config = trained.result, trained.counts, prepared.config
        rows = [
            (
                part,
                f"{counts[part]:,}",
                f"{score.value:.1%} ({score.low:.1%} to {score.high:.1%})",
                f"{trained.losses[part]:.4f}",
            )
            for part, score in trained.scores.items()
        ]
        headings = ("part", "nodes", "accuracy", "loss")
        print_scores(f"{config.data}: {result.stopped}", headings, rows, console)
        console.print(
            "Intervals are of 95%, over the choice of nodes; always naming the commonest "
            f"class is right for {trained.guess:.1%} of the test.\n"
            f"{weights_sentence(counts, config.sparsify)}\n"
            f"{costs_sentences(trained.costs, config, linear=config.model == 'fnn')}"
            f"{counts['classes']} classes, {time_sentence(result, 'nodes')}\n{where(folder)}",
            soft_wrap=True,
        )

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Give the class of all nodes of the run's graph, or of those in a file."""
        from weft.recipes.nodes.prediction import load_classes, predict_classes
        from weft.recipes.output import prediction_file, write_probabilities

        out = prediction_file(options.out, file or run, (".csv", ".json"), "predictions")
        found = predict_classes(load_classes(run), file)
        rows = list(zip(found.nodes, found.classes, found.probability.tolist(), strict=True))
        write_probabilities(("node", "class", "probability"), rows, out, console)


class CitationsRecipe(NodesRecipe):
    """The recipe for nodes with the settings of Kipf and Welling (2017).

    It is kept for scripts and runs that have it; options have their earlier names too.
    """

    help = """
    Train a two-layer GCN to tell a paper's topic on Cora, CiteSeer or PubMed.

    The settings and the split are those of Kipf and Welling (2017). The same is now
      weft train nodes --data cora --split public --learning-rate 0.01 --schedule.shape constant
    """
    plan_help = """
    Measure with how many threads a citation graph is trained on fastest.

    Takes the options of `weft train citations`. Example:
      weft plan citations --data pubmed
    """
    # Runs of earlier versions keep nothing for predictions.
    kind = None
    trains = "GCN"
    replaced_by = "weft train nodes --split public --learning-rate 0.01 --schedule.shape constant"
    renamed: ClassVar[dict[str, str]] = {
        f"--model.{name}": f"--{name}" for name in ("hidden", "dropout", "input-dropout")
    }
    common = ("data", "learning_rate", "weight_decay", "epochs", "patience")

    def default(self) -> NodesConfig:
        """The published settings."""
        return PUBLISHED

    def as_now(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Earlier runs have recorded their few settings, those of the network in a part."""
        model = recorded.get("model")
        if isinstance(model, Mapping):
            recorded = {**asdict(PUBLISHED.settled()), **recorded, **model, "model": "gcn"}
        return super().as_now(recorded)

    def checksums(self, data: NodesData, config: NodesConfig) -> dict[str, str]:
        """Of the graph's table, as earlier runs have recorded them."""
        from weft.graphs import table_from_graphs
        from weft.graphs.checksums import table_checksums

        return table_checksums(table_from_graphs([data.graph]))

    def summary(self, trained: TrainedNodes, prepared: PreparedNodes) -> dict[str, Any]:
        """Also the accuracies by the names that earlier runs have for them."""
        accuracies = {f"{part}_accuracy": score.value for part, score in trained.scores.items()}
        return super().summary(trained, prepared) | accuracies


NODES = NodesRecipe("nodes")
CITATIONS = CitationsRecipe("citations")
