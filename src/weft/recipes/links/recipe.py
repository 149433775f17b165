"""The recipe for links."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.recipes.links.config import LinksConfig
from weft.recipes.recipe import DataOptions, PredictOptions, StandardRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.parallel.world import World
    from weft.recipes.links.candidates import LinksTask
    from weft.recipes.links.training import PreparedLinks, TrainedLinks
    from weft.sources import EdgeList
    from weft.training import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class LinksData:
    """A temporal graph that was read, split and embedded.

    Attributes:
        edges: the graph.
        prepared: what is trained on; a plan changes nothing of it but its configuration.
    """

    edges: EdgeList
    prepared: PreparedLinks


class LinksRecipe(StandardRecipe):
    """Which nodes of a temporal graph are joined next."""

    help = """
    Train a network to tell which nodes of a temporal graph are joined next.

    Reads embeddings of temporal walks. Edges are split by time, and embeddings are made of the
    training edges alone. Examples:
      weft train links --data CollegeMsg
      weft train links --data my_edges.txt --sparsify rigl --sparsity 0.906
      weft train links --data my_edges.txt --hidden 1024 1024 --sparsify rigl --form sparse
      weft train links --data my_edges.txt --keep 0.262   (sparse embeddings)
    """
    plan_help = """
    Measure how to train on a temporal graph's links fastest: dense or sparse layers, threads.

    Takes the options of `weft train links`. Example:
      weft plan links --data my_edges.txt --hidden 1024 1024 --sparsify rigl
    """
    kind = "links"
    trains, counts = "Predictor of links", "pairs"
    common = (
        *("data", "hidden", "sparsify", "sparsity", "form", "batch_size", "learning_rate"),
        "epochs",
    )
    shares_batches = True

    def default(self) -> LinksConfig:
        """The configuration that a newcomer gets."""
        return LinksConfig()

    def read(self, config: LinksConfig, source: DataOptions, *, progress: bool) -> LinksData:
        """The temporal graph with the embeddings of its nodes."""
        from weft.recipes.links.data import temporal_edges
        from weft.recipes.links.training import prepare_links

        edges = temporal_edges(
            config.data, files=source.files, data_dir=source.data_dir, progress=progress
        )
        return LinksData(edges=edges, prepared=prepare_links(edges, config))

    def plan_task(self, data: LinksData, config: LinksConfig) -> LinksTask:
        """The form of the layers, and threads."""
        from weft.recipes.links.candidates import LinksTask

        return LinksTask(data.prepared)

    def prepare(
        self, data: LinksData, config: LinksConfig, *, world: World, earlier: Path | None
    ) -> PreparedLinks:
        """What was prepared with the data, with the settings of the plan."""
        from weft.training.sparse_step import check_form

        check_form(config, world)
        return replace(data.prepared, config=config)

    def checksums(self, data: LinksData, config: LinksConfig) -> dict[str, str]:
        """Of edges, times and names."""
        import numpy as np

        from weft.graphs.checksums import checksum

        edges = data.edges
        assert edges.time is not None
        return {
            "edges": checksum(np.stack([edges.senders, edges.receivers])),
            "times": checksum(edges.time),
            "names": checksum(edges.ids),
        }

    def train(
        self,
        prepared: PreparedLinks,
        *,
        run: Run,
        init_from: Path | None,
        world: World,
        quiet: bool,
    ) -> TrainedLinks:
        """Train the network, and time a step of it if it is sparse."""
        from weft.recipes.links.training import train_links

        return train_links(
            prepared, run=run, init_from=init_from, world=world, quiet=quiet, measure_step=True
        )

    def summary(self, trained: TrainedLinks, prepared: PreparedLinks) -> dict[str, Any]:
        """Scores with intervals, counts and costs."""
        return {
            "test": {name: asdict(score) for name, score in trained.scores.items()},
            "counts": trained.counts,
            "repeated": trained.repeated,
            "embedding_seconds": prepared.seconds,
            "step_costs": None if trained.costs is None else asdict(trained.costs),
        }

    def show(
        self, trained: TrainedLinks, prepared: PreparedLinks, folder: Path, console: Console
    ) -> None:
        """Print the scores, the sparsity with its costs, and where everything is."""
        from weft.recipes.output import (
            costs_sentences,
            print_scores,
            time_sentence,
            weights_sentence,
            where,
        )

        result, counts, config = trained.result, trained.counts, prepared.config
        best = result.best_metrics
        rows = [
            (
                "validation",
                f"{counts['validation']:,}",
                f"{best['validation_auc']:.4f}",
                f"{best['validation_ap']:.4f}",
            ),
            ("test", f"{counts['test']:,}", str(trained.scores["auc"]), str(trained.scores["ap"])),
        ]
        headings = ("part", "edges", "AUC", "average precision")
        print_scores(f"{config.data}: {result.stopped}", headings, rows, console)
        if config.compat:
            console.print(
                "With --compat the embeddings have seen the test's edges: these scores are too "
                "good, and to be compared with the paper's only.",
                soft_wrap=True,
            )
        console.print(
            f"Intervals are of 95%, over the choice of test pairs; {trained.repeated:.1%} of the "
            "test's edges join two nodes that an edge of training joins too.\n"
            f"{weights_sentence(counts, config.sparsify)}\n"
            f"{costs_sentences(trained.costs, config, linear=True)}"
            f"{counts['train']:,} edges for training, {time_sentence(result, 'edges')}\n"
            f"{where(folder)}",
            soft_wrap=True,
        )

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Say of each pair of nodes in a file how probable an edge is."""
        from weft.errors import DataError
        from weft.recipes.links.prediction import load_links, predict_links
        from weft.recipes.output import prediction_file, write_probabilities

        if file is None:
            raise DataError(f"name a file with the lines src dst: weft predict {run} FILE")
        out = prediction_file(options.out, file, (".csv", ".json"), "predictions")
        found = predict_links(load_links(run), file)
        rows = [(*pair, p) for pair, p in zip(found.pairs, found.probability.tolist(), strict=True)]
        write_probabilities(("src", "dst", "probability"), rows, out, console)
        unseen = (
            f" {found.unseen:,} of the pairs have a node that is on no walk over training edges: "
            "nothing is known of it."
            if found.unseen
            else ""
        )
        console.print(
            f"A probability is that of an edge among as many pairs that are none.{unseen}",
            soft_wrap=True,
        )


LINKS = LinksRecipe("links")
