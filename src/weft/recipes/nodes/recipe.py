"""The recipes for the classes of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.recipes.nodes.config import CitationsConfig, NodesConfig
from weft.recipes.recipe import DataOptions, PredictOptions, StandardRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.graphs import Graph, GraphBatch, GraphTable
    from weft.parallel.world import World
    from weft.recipes.nodes.candidates import CitationsTask, NodesTask
    from weft.recipes.nodes.training import PreparedNodes, TrainedNodes
    from weft.training import FitResult, Run


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
    kind = "nodes"
    trains, counts = "Classifier of nodes", "nodes"
    source = NodesDataOptions
    common = (
        *("data", "model", "split", "hidden", "sparsify", "sparsity", "form"),
        *("learning_rate", "epochs"),
    )
    shares_batches = True

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

        return NodesTask(data.prepared)

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
        """Accuracy with intervals, counts and costs."""
        return {
            "accuracy": {name: asdict(score) for name, score in trained.scores.items()},
            "counts": trained.counts,
            "embedding_seconds": prepared.seconds,
            "guess": trained.guess,
            "step_costs": None if trained.costs is None else asdict(trained.costs),
        }

    def show(
        self, trained: TrainedNodes, prepared: PreparedNodes, folder: Path, console: Console
    ) -> None:
        """Print the accuracy, the sparsity with its costs, and where everything is."""
        from weft.recipes.output import costs_sentences, print_scores, weights_sentence, where

        result, counts, config = trained.result, trained.counts, prepared.config
        rows = [
            (part, f"{counts[part]:,}", f"{score.value:.1%} ({score.low:.1%} to {score.high:.1%})")
            for part, score in trained.scores.items()
        ]
        headings = ("part", "nodes", "accuracy")
        print_scores(f"{config.data}: {result.stopped}", headings, rows, console)
        console.print(
            "Intervals are of 95%, over the choice of nodes; always naming the commonest "
            f"class is right for {trained.guess:.1%} of the test.\n"
            f"{weights_sentence(counts, config.sparsify)}\n"
            f"{costs_sentences(trained.costs, config, linear=config.model == 'fnn')}"
            f"{counts['classes']} classes, {result.epochs} epochs in {result.seconds:.1f} s; the "
            f"weights are those of epoch {result.best_epoch}, the best on the validation nodes.\n"
            f"{where(folder)}",
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


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedCitations:
    """A citation graph made ready.

    Attributes:
        batch: the graph.
        config: the recipe.
    """

    batch: GraphBatch
    config: CitationsConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedCitations:
    """What training on a citation graph gives.

    Attributes:
        result: how the training went.
        scores: loss and accuracy on each part.
    """

    result: FitResult
    scores: dict[str, float]


class CitationsRecipe(StandardRecipe):
    """The topic of a paper: a GCN with the settings of Kipf and Welling (2017).

    The recipe for nodes gives the same weights to the bit, with the options that `replaced_by`
    names; this one is kept for runs and scripts that have it.
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
    kind = None
    trains, counts = "GCN", "epochs"
    replaced_by = "weft train nodes --split public --learning-rate 0.01 --schedule.shape constant"
    common = ("data", "learning_rate", "weight_decay", "epochs", "patience")

    def default(self) -> CitationsConfig:
        """The configuration that a newcomer gets."""
        return CitationsConfig()

    def read(self, config: CitationsConfig, source: DataOptions, *, progress: bool) -> GraphTable:
        """The table of the citation graph."""
        from weft.recipes.nodes.citations import citation_batch
        from weft.sources import load

        table = load(config.data, files=source.files, data_dir=source.data_dir)
        # Looked at before anything is planned or written.
        citation_batch(table)
        return table

    def plan_task(self, data: GraphTable, config: CitationsConfig) -> CitationsTask:
        """Threads."""
        from weft.recipes.nodes.candidates import CitationsTask

        return CitationsTask(data, config)

    def prepare(
        self, data: GraphTable, config: CitationsConfig, *, world: World, earlier: Path | None
    ) -> PreparedCitations:
        """The graph as a batch."""
        from weft.recipes.nodes.citations import citation_batch

        return PreparedCitations(batch=citation_batch(data), config=config)

    def train(
        self,
        prepared: PreparedCitations,
        *,
        run: Run,
        init_from: Path | None,
        world: World,
        quiet: bool,
    ) -> TrainedCitations:
        """Train the GCN."""
        from weft.recipes.nodes.citations import train_citations

        _, result, scores = train_citations(
            prepared.batch, prepared.config, run=run, init_from=init_from, quiet=quiet
        )
        return TrainedCitations(result=result, scores=scores)

    def summary(self, trained: TrainedCitations, prepared: PreparedCitations) -> dict[str, Any]:
        """Loss and accuracy on each part."""
        return trained.scores

    def show(
        self,
        trained: TrainedCitations,
        prepared: PreparedCitations,
        folder: Path,
        console: Console,
    ) -> None:
        """Print the accuracy, and where everything is."""
        from weft.recipes.output import print_scores, where

        result, scores = trained.result, trained.scores
        rows = [
            (part, f"{scores[f'{part}_accuracy']:.1%}", f"{scores[f'{part}_loss']:.4f}")
            for part in ("train", "validation", "test")
        ]
        title = f"{prepared.config.data}: {result.stopped}"
        print_scores(title, ("part", "accuracy", "loss"), rows, console)
        console.print(
            f"{result.epochs} epochs in {result.seconds:.1f} s; the weights are those of epoch "
            f"{result.best_epoch}, the best on the validation papers.\n{where(folder)}",
            soft_wrap=True,
        )


NODES = NodesRecipe("nodes")
CITATIONS = CitationsRecipe("citations")
