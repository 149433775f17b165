"""The recipe for the classes of nodes, and that of citation graphs for older runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.errors import DataError
from weft.recipes.nodes.config import PUBLISHED, NodesConfig
from weft.recipes.recipe import DataOptions, ExportOptions, PredictOptions
from weft.recipes.sparse_recipe import SparseRecipe, check_file

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.exported_program import Exported
    from weft.recipes.nodes.training import PreparedNodes
    from weft.recipes.sparse_training import PreparedNetwork, TrainedNetwork


@dataclass(frozen=True, kw_only=True)
class NodesDataOptions(DataOptions):
    """Where the graph and its classes are read from.

    Attributes:
        labels: The classes of an edge list of your own: a file with the lines node label.
    """

    labels: Path | None = None


class NodesRecipe(SparseRecipe):
    """The class of a node."""

    help = """
    Train a network to predict the class of a node.

    A GCN on features, or a feed-forward network on embeddings of walks. An edge list of your own
    has the lines src dst time: its walks follow the times. Examples:
      weft train nodes --data cora --sparsify rigl --sparsity 0.9
      weft train nodes --data pubmed --split public --learning-rate 0.01 --schedule.shape constant
      weft train nodes --data patent --files FOLDER --model fnn
      weft train nodes --data my_edges.txt --labels my_labels.txt --model fnn
      weft train nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl --form sparse
    """
    plan_help = """
    Measure the fastest way to train on classes of nodes: dense or sparse layers, threads.

    Takes the options of `weft train nodes`. Example:
      weft plan nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl
    """
    kind: ClassVar[str | None] = "nodes"
    trains, counts = "Classifier of nodes", "nodes"
    source = NodesDataOptions
    common: ClassVar[tuple[str, ...]] = (
        *("data", "model", "split", "hidden", "sparsify", "sparsity", "structure", "form"),
        *("learning_rate", "epochs"),
    )
    before: ClassVar[Mapping[str, Any]] = {**SparseRecipe.before, "input_dropout": None}
    scored = "accuracy"
    headings = ("part", "nodes", "accuracy", "loss")

    def default(self) -> NodesConfig:
        """The configuration that a newcomer gets."""
        return NodesConfig()

    def settled(self, config: NodesConfig, earlier: Mapping[str, Any] | None = None) -> NodesConfig:
        """The configuration with the model's own defaults."""
        return config.settled()

    def read(
        self, config: NodesConfig, source: NodesDataOptions, *, progress: bool
    ) -> PreparedNodes:
        """The graph of a data set, or of an edge list with a file of labels, made ready."""
        from weft.recipes.nodes.training import prepare_nodes
        from weft.sources import CATALOGUE, labelled_graph, load

        data, labels = config.data, source.labels
        if data in CATALOGUE:
            if labels is not None:
                raise DataError(f"'{data}' has classes already: leave out --labels")
            table = load(data, files=source.files, data_dir=source.data_dir, progress=progress)
            if len(table) != 1:
                raise DataError(f"'{data}' holds {len(table):,} graphs; exactly one is needed")
            return prepare_nodes(table[0], config)
        check_file(data)
        if labels is None:
            raise DataError(
                f"{data} has no classes: give a file with the lines `node label` with --labels"
            )
        return prepare_nodes(labelled_graph(data, labels), config)

    def checksums(self, data: PreparedNodes, config: NodesConfig) -> dict[str, str]:
        """Of edges and columns."""
        from weft.graphs.checksums import graph_checksums

        return graph_checksums(data.graph)

    def rows(self, trained: TrainedNetwork) -> list[tuple[str, ...]]:
        """Accuracy with an interval, and loss."""
        return [
            (
                part,
                f"{trained.counts[part]:,}",
                f"{score.value:.1%} ({score.low:.1%} to {score.high:.1%})",
                f"{trained.facts[f'{part}_loss']:.4f}",
            )
            for part, score in trained.scores.items()
        ]

    def remarks(self, trained: TrainedNetwork, config: NodesConfig) -> tuple[str, str, str]:
        """What a guess would reach, and how many classes there are."""
        on_scores = (
            "Intervals are of 95%, over the choice of nodes; always naming the commonest "
            f"class is right for {trained.facts['guess']:.1%} of the test."
        )
        return on_scores, f"{trained.counts['classes']} classes", "nodes"

    def export(self, run: Path, path: Path, options: ExportOptions) -> Exported:
        """Write the network of a run as a program for other runtimes."""
        from weft.recipes.nodes.export import export_nodes

        return export_nodes(run, path, int8=options.int8)

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Give the class of all nodes of the run's graph, or of those in a file."""
        from weft.recipes.nodes.training import predict_classes
        from weft.recipes.output import prediction_file, write_probabilities

        out = prediction_file(options.out, file or run, (".csv", ".json"), "predictions")
        rows = predict_classes(run, file)
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
    Measure the number of threads that trains on a citation graph fastest.

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

    def checksums(self, data: PreparedNodes, config: NodesConfig) -> dict[str, str]:
        """Of the graph's table, as earlier runs have recorded them."""
        from weft.graphs import table_from_graphs
        from weft.graphs.checksums import table_checksums

        return table_checksums(table_from_graphs([data.graph]))

    def summary(self, trained: TrainedNetwork, prepared: PreparedNetwork) -> dict[str, Any]:
        """Also the accuracies by the names that earlier runs have for them."""
        accuracies = {f"{part}_accuracy": score.value for part, score in trained.scores.items()}
        return super().summary(trained, prepared) | accuracies


NODES = NodesRecipe("nodes")
CITATIONS = CitationsRecipe("citations")
