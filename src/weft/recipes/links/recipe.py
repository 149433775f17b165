"""The recipe for links."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from weft.recipes.links.config import LinksConfig
from weft.recipes.recipe import DataOptions, ExportOptions, PredictOptions, member_folders
from weft.recipes.sparse_recipe import SparseRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.exported_program import Exported
    from weft.parallel.world import World
    from weft.recipes.links.training import PreparedLinks
    from weft.recipes.sparse_training import PreparedNetwork, TrainedNetwork


_SCORES = ("auc", "ap")
# Nodes that are named in a sentence.
_NAMED = 10


class LinksRecipe(SparseRecipe):
    """Which nodes of a temporal graph are joined next."""

    help = """
    Train a network to tell which nodes of a temporal graph are joined next.

    Reads embeddings of temporal walks beside degrees, times and earlier edges of the pair. Edges
    are split by time, and all of that is made of the training edges alone. Examples:
      weft train links --data CollegeMsg
      weft train links --data CollegeMsg --seeds 5   (mean scores beside those of guesses)
      weft train links --data CollegeMsg --no-features   (embeddings alone)
      weft train links --data my_edges.txt --sparsify rigl --sparsity 0.906
      weft train links --data my_edges.txt --hidden 1024 1024 --sparsify rigl --form sparse
      weft train links --data my_edges.txt --keep 0.262   (sparse embeddings)
    """
    plan_help = """
    Measure the fastest way to train on a temporal graph's links: dense or sparse layers, threads.

    Takes the options of `weft train links`. Example:
      weft plan links --data my_edges.txt --hidden 1024 1024 --sparsify rigl
    """
    kind = "links"
    trains, counts = "Predictor of links", "pairs"
    common = (
        *("data", "features", "hidden", "sparsify", "sparsity", "structure", "form"),
        *("batch_size", "learning_rate", "epochs"),
    )
    trains_ensembles = True
    before: ClassVar[Mapping[str, Any]] = {**SparseRecipe.before, "features": False}
    scored = "test"
    headings = ("", "validation AUC", "AP", "test AUC", "AP")

    def default(self) -> LinksConfig:
        """The configuration that a newcomer gets."""
        return LinksConfig()

    def settled(self, config: LinksConfig, earlier: Mapping[str, Any] | None = None) -> LinksConfig:
        """Without features with --compat, or where the run to go on with has none."""
        return config.settled(earlier)

    def read(self, config: LinksConfig, source: DataOptions, *, progress: bool) -> PreparedLinks:
        """The temporal graph with the embeddings of its nodes."""
        from weft.recipes.links.data import temporal_edges
        from weft.recipes.links.training import prepare_links

        edges = temporal_edges(
            config.data, files=source.files, data_dir=source.data_dir, progress=progress
        )
        return prepare_links(edges, config)

    def prepare(
        self, data: PreparedLinks, config: LinksConfig, *, world: World, **how: Any
    ) -> PreparedLinks:
        """What was read; another seed has walks and pairs of its own."""
        from weft.recipes.links.training import prepare_links

        if config.seed != data.config.seed:
            data = prepare_links(data.edges, config)
        found = super().prepare(data, config, world=world, **how)
        return cast("PreparedLinks", found)

    def train(self, prepared: Any, **how: Any) -> TrainedNetwork:
        """Train the network and test it; then all edges are what predictions rest on."""
        trained = super().train(prepared, **how)
        if how["world"].rank == 0 and not trained.result.stopped.startswith("interrupted"):
            prepared.refit(how["run"].folder)
        return trained

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

    def summary(self, trained: TrainedNetwork, prepared: PreparedNetwork) -> dict[str, Any]:
        """Also the validation scores of the weights that are kept."""
        best = trained.result.best_metrics
        names = [name for name in (f"validation_{of}" for of in _SCORES) if name in best]
        return {name: best[name] for name in names} | super().summary(trained, prepared)

    def rows(self, trained: TrainedNetwork) -> list[tuple[str, ...]]:
        """AUC and average precision of the network, and of guesses on the same pairs."""
        best = trained.result.best_metrics
        network = {
            "validation": {of: best.get(f"validation_{of}", math.nan) for of in _SCORES},
            "test": {of: trained.scores[of].value for of in _SCORES},
        }
        baselines = trained.facts["baselines"]
        rows = [("network", network), *((name, None) for name in baselines["test"])]
        return [
            (
                name,
                *(
                    f"{(own[part] if own else baselines[part][name])[of]:.4f}"
                    for part in network
                    for of in _SCORES
                ),
            )
            for name, own in rows
        ]

    def mean_of(self, members: Sequence[TrainedNetwork], console: Console) -> TrainedNetwork:
        """The mean scores of networks of several seeds, and those of guesses on their pairs."""
        from weft.training.scores import mean_score

        last, count = members[-1], len(members)
        console.print(
            f"Means of {count} seeds, each with its own walks, pairs and weights.", soft_wrap=True
        )
        scores = {
            name: mean_score([each.scores[name].value for each in members]) for name in last.scores
        }
        best = {
            name: sum(each.result.best_metrics[name] for each in members) / count
            for name in last.result.best_metrics
            if all(name in each.result.best_metrics for each in members)
        }
        baselines = {
            part: {
                name: {
                    of: sum(each.facts["baselines"][part][name][of] for each in members) / count
                    for of in _SCORES
                }
                for name, guess in guesses.items()
            }
            for part, guesses in last.facts["baselines"].items()
        }
        return dataclasses.replace(
            last,
            scores=scores,
            result=dataclasses.replace(last.result, best_metrics=best),
            facts={**last.facts, "baselines": baselines, "seeds": count},
        )

    def remarks(self, trained: TrainedNetwork, config: LinksConfig) -> tuple[str, str, str]:
        """Also what guesses know, and that scores are too good with the paper's split."""
        compat = (
            "With --compat the embeddings have seen the test's edges: these scores are too good, "
            "and to be compared with the paper's only.\n"
        )
        over = "seeds" if "seeds" in trained.facts else "choice of test pairs"
        auc, ap = (trained.scores[of] for of in _SCORES)
        on_scores = (
            f"Test intervals of 95%, over the {over}: AUC {auc.low:.4f} to {auc.high:.4f}, AP "
            f"(average precision) {ap.low:.4f} to {ap.high:.4f}. Below the network stand guesses "
            "that need no training, on the same pairs, from the training edges alone. "
            f"{trained.facts['repeated']:.1%} of the test's {trained.counts['test']:,} edges join "
            "two nodes that an edge of training joins too."
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
        from weft.recipes.links.prediction import predict_links
        from weft.recipes.output import prediction_file, write_probabilities

        if file is None:
            raise DataError(f"name a file with the lines src dst: weft predict {run} FILE")
        out = prediction_file(options.out, file, (".csv", ".json"), "predictions")
        found = predict_links(member_folders(run), file)
        headings = ("src", "dst", "probability", "unknown")
        write_probabilities(headings[: len(found.rows[0])], found.rows, out, console)
        remark = "A probability is that of an edge among as many pairs that are none."
        if found.edges is not None:
            remark += f" It rests on {found.edges:,} of {found.of_edges:,} edges"
            remark += "." if found.edges == found.of_edges else ": the run has not come to its end."
        if found.unknown:
            named = ", ".join(map(str, found.unknown[:_NAMED]))
            more = len(found.unknown) - _NAMED
            remark += (
                f" {found.pairs:,} of the pairs have a node of which nothing is known, so the "
                f"numbers say little: {named}{f' and {more:,} more' if more > 0 else ''}."
            )
        console.print(remark, soft_wrap=True)


LINKS = LinksRecipe("links")
