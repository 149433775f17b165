"""The recipe for links."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from weft.recipes.links.config import LinksConfig
from weft.recipes.recipe import DataOptions, ExportOptions, PredictOptions
from weft.recipes.sparse_recipe import SparseRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.exported_program import Exported
    from weft.recipes.links.training import PreparedLinks
    from weft.recipes.sparse_training import TrainedNetwork


class LinksRecipe(SparseRecipe):
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
    scored = "test"
    headings = ("part", "edges", "AUC", "average precision")

    def default(self) -> LinksConfig:
        """The configuration that a newcomer gets."""
        return LinksConfig()

    def read(self, config: LinksConfig, source: DataOptions, *, progress: bool) -> PreparedLinks:
        """The temporal graph with the embeddings of its nodes."""
        from weft.recipes.links.data import temporal_edges
        from weft.recipes.links.training import prepare_links

        edges = temporal_edges(
            config.data, files=source.files, data_dir=source.data_dir, progress=progress
        )
        return prepare_links(edges, config)

    def checksums(self, data: PreparedLinks, config: LinksConfig) -> dict[str, str]:
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

    def rows(self, trained: TrainedNetwork) -> list[tuple[str, ...]]:
        """AUC and average precision, those of the test with intervals."""
        counts, best = trained.counts, trained.result.best_metrics
        held = [f"{best.get(f'validation_{name}', math.nan):.4f}" for name in ("auc", "ap")]
        return [
            ("validation", f"{counts['validation']:,}", *held),
            ("test", f"{counts['test']:,}", str(trained.scores["auc"]), str(trained.scores["ap"])),
        ]

    def remarks(self, trained: TrainedNetwork, config: LinksConfig) -> tuple[str, str, str]:
        """Also that scores are too good with the paper's split."""
        compat = (
            "With --compat the embeddings have seen the test's edges: these scores are too good, "
            "and to be compared with the paper's only.\n"
        )
        on_scores = (
            "Intervals are of 95%, over the choice of test pairs; "
            f"{trained.facts['repeated']:.1%} of the test's edges join two nodes that an edge of "
            "training joins too."
        )
        trained_on = f"{trained.counts['train']:,} edges for training"
        return (compat if config.compat else "") + on_scores, trained_on, "edges"

    def export(self, run: Path, path: Path, options: ExportOptions) -> Exported:
        """Write the network of a run as a program for other runtimes."""
        from weft.recipes.links.export import export_links

        return export_links(run, path, int8=options.int8)

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Say of each pair of nodes in a file how probable an edge is."""
        from weft.errors import DataError
        from weft.recipes.links.training import predict_links
        from weft.recipes.output import prediction_file, write_probabilities

        if file is None:
            raise DataError(f"name a file with the lines src dst: weft predict {run} FILE")
        out = prediction_file(options.out, file, (".csv", ".json"), "predictions")
        rows, unseen = predict_links(run, file)
        write_probabilities(("src", "dst", "probability"), rows, out, console)
        remark = "A probability is that of an edge among as many pairs that are none."
        if unseen:
            remark += (
                f" {unseen:,} of the pairs have a node that is on no walk over training edges: "
                "nothing is known of it."
            )
        console.print(remark, soft_wrap=True)


LINKS = LinksRecipe("links")
