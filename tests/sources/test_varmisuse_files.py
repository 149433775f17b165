"""VarMisuse samples from files: Allamanis et al.'s format, GREAT's, and everything bad in them."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph, GraphTable
from weft.sources import load, read_great, read_varmisuse
from weft.sources.file_records import BadSample, json_samples
from weft.sources.great_files import GREAT_EDGES
from weft.sources.program_graph import (
    CANDIDATE,
    EDGE_TYPES,
    NUM_TYPES,
    SLOT,
    SLOT_LABEL,
    VOCABULARY,
    label_buckets,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

# `a = b ; print ( SLOT )` with the candidates a (6) and b (7); the right one is a.
SAMPLE: dict[str, Any] = {
    "filename": "src/one.cs",
    "ContextGraph": {
        "Edges": {
            "Child": [[5, 0], [5, 2], [5, 0]],
            "NextToken": [[0, 1], [1, 2], [2, 3], [3, 4]],
            "ComputedFrom": [[0, 2]],
            "LastLexicalUse": [[6, 0], [7, 2]],
            "LastWrite": [[6, 0]],
        },
        "NodeLabels": {
            "0": "myValue",
            "1": "=",
            "2": "other_thing",
            "3": "print",
            "4": "<SLOT>",
            "5": "Assignment",
            "6": "myValue",
            "7": "other_thing",
        },
        "NodeTypes": {},
    },
    "slotTokenIdx": 4,
    "SlotDummyNode": 4,
    "SymbolCandidates": [
        {"SymbolDummyNode": 6, "SymbolName": "myValue", "IsCorrect": True},
        {"SymbolDummyNode": 7, "SymbolName": "other_thing", "IsCorrect": False},
    ],
}

# The bug: the second-last `self` was `key`.
AFTER_DEF = "self , key ) return self . find ( self ) + self"
GREAT: dict[str, Any] = {
    "has_bug": True,
    "source_tokens": ["def get(", *AFTER_DEF.split()],
    "edges": [
        [0, 4, 7, "enum_FIELD"],
        [6, 1, 10, "enum_LAST_LEXICAL_USE"],
        [10, 6, 10, "enum_LAST_LEXICAL_USE"],
        [13, 10, 10, "enum_LAST_LEXICAL_USE"],
        [6, 1, 3, "enum_LAST_WRITE"],
        [10, 1, 3, "enum_LAST_WRITE"],
        [10, 6, 2, "enum_LAST_READ"],
        [13, 10, 2, "enum_LAST_READ"],
        [10, 10, 2, "enum_LAST_READ"],
        [5, 6, 1, "enum_CFG_NEXT"],
        [9, 10, 9, "enum_NEXT_SYNTAX"],
        [10, 11, 9, "enum_NEXT_SYNTAX"],
    ],
    "error_location": 10,
    "repair_targets": [3],
    "repair_candidates": [1, 6, 10, 13, 3, "self"],
    "provenances": [{"datasetProvenance": {"filepath": "me/it/get.py"}}],
}

READERS: dict[str, tuple[Callable[..., GraphTable], dict[str, Any]]] = {
    "varmisuse": (read_varmisuse, SAMPLE),
    "great": (read_great, GREAT),
}


def lines(*samples: Any) -> bytes:
    return "".join(json.dumps(sample) + "\n" for sample in samples).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def changed(sample: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    """`sample` with another value at `path`."""
    sample = copy.deepcopy(sample)
    place = sample
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return sample


def without(sample: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != key}


def read(name: str, tmp_path: Path, *samples: Any, **options: Any) -> GraphTable:
    file = write(tmp_path / "s.jsonl.gz", lines(*samples))
    return READERS[name][0]([file], progress=False, **options)


def nodes_by_label(graph: Graph) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for node, words in enumerate(graph.nodes["subtokens"].tolist()):
        found.setdefault(tuple(words), []).append(node)
    return found


def edges_of(graph: Graph, names: dict[int, Any]) -> set[tuple[str, Any, Any]]:
    """The forward edges by type and the names of their ends."""
    ends = zip(graph.edges["type"], graph.senders, graph.receivers, strict=True)
    return {
        (EDGE_TYPES[t], names[int(a)], names[int(b)]) for t, a, b in ends if t < len(EDGE_TYPES)
    }


def check_contract(table: GraphTable) -> None:
    """What every table of programs promises."""
    assert table.metadata["kind"] == "programs"
    assert len(table.metadata["edge_types"]) == NUM_TYPES
    assert table.metadata["vocabulary"] == VOCABULARY
    assert table.metadata["order"] == "rcm"
    json.dumps(dict(table.metadata))
    dtypes = {name: (column.level, column.dtype) for name, column in table.schema.items()}
    assert dtypes == {
        "subtokens": ("node", "int32"),
        "role": ("node", "int8"),
        "correct": ("node", "int8"),
        "recent": ("node", "int8"),
        "type": ("edge", "int8"),
        "file": ("graph", "int32"),
        "line": ("graph", "int32"),
        "column": ("graph", "int32"),
    }
    words = table.column("subtokens")
    assert words.min() >= 0
    assert words.max() < VOCABULARY
    assert 0 <= table.column("file").min() <= table.column("file").max()
    assert table.column("file").max() < len(table.metadata["files"])
    for graph in table:
        role = graph.nodes["role"]
        assert (role == SLOT).sum() == 1
        assert (role == CANDIDATE).sum() >= 2
        for name in ("correct", "recent"):
            (marked,) = np.flatnonzero(graph.nodes[name])
            assert role[marked] == CANDIDATE
        every = list(
            zip(
                graph.edges["type"].tolist(),
                graph.senders.tolist(),
                graph.receivers.tolist(),
                strict=True,
            )
        )
        assert len(set(every)) == len(every)
        half = len(EDGE_TYPES)
        assert {(t + half, b, a) for t, a, b in every if t < half} == {
            e for e in every if e[0] >= half
        }


def test_a_sample_of_allamanis(tmp_path: Path) -> None:
    table = read("varmisuse", tmp_path, SAMPLE)
    check_contract(table)
    (graph,) = table
    assert graph.num_nodes == 8
    places = nodes_by_label(graph)
    names: dict[int, Any] = {}
    for label in ("=", "print", "<SLOT>", "Assignment"):
        (node,) = places[label_buckets(label)]
        names[node] = label
    for label, short in (("myValue", "a"), ("other_thing", "b")):
        for node in places[label_buckets(label)]:
            names[node] = short.upper() if graph.nodes["role"][node] == CANDIDATE else short
    assert edges_of(graph, names) == {
        ("Child", "Assignment", "a"),
        ("Child", "Assignment", "b"),
        ("NextToken", "a", "="),
        ("NextToken", "=", "b"),
        ("NextToken", "b", "print"),
        ("NextToken", "print", "<SLOT>"),
        ("ComputedFrom", "a", "b"),
        ("LastLexicalUse", "A", "a"),
        ("LastLexicalUse", "B", "b"),
        ("LastWrite", "A", "a"),
    }
    assert names[int(np.flatnonzero(graph.nodes["role"] == SLOT)[0])] == "<SLOT>"
    assert names[int(np.flatnonzero(graph.nodes["correct"])[0])] == "A"
    assert names[int(np.flatnonzero(graph.nodes["recent"])[0])] == "B"
    assert table.metadata["files"] == ["src/one.cs"]
    assert table.column("line").tolist() == [1]
    assert table.metadata["skipped"] == {}


def recent_name(table: GraphTable) -> str:
    (graph,) = table
    words = tuple(graph.nodes["subtokens"][graph.nodes["recent"] == 1][0].tolist())
    return {label_buckets(name): name for name in ("myValue", "other_thing")}[words]


def test_the_most_recent_use_follows_the_text_not_the_numbers(tmp_path: Path) -> None:
    # The text is now b = a ; print ( SLOT ).
    chain = [[2, 1], [1, 0], [0, 3], [3, 4]]
    turned = changed(SAMPLE, "ContextGraph", "Edges", "NextToken", to=chain)
    assert recent_name(read("varmisuse", tmp_path, turned)) == "myValue"


def test_the_most_recent_use_without_a_chain(tmp_path: Path) -> None:
    edges = without(SAMPLE["ContextGraph"]["Edges"], "NextToken")
    sample = changed(SAMPLE, "ContextGraph", "Edges", to=edges)
    assert recent_name(read("varmisuse", tmp_path, sample)) == "other_thing"
    circle = changed(SAMPLE, "ContextGraph", "Edges", "NextToken", to=[[3, 4], [4, 3]])
    assert recent_name(read("varmisuse", tmp_path, circle)) == "other_thing"


def test_without_any_use_the_first_candidate_is_the_recent_one(tmp_path: Path) -> None:
    sample = changed(SAMPLE, "ContextGraph", "Edges", to={})
    table = read("varmisuse", tmp_path, sample)
    assert recent_name(table) == "myValue"
    assert table.total_edges == 0


@pytest.mark.parametrize("suffix", [".gz", ".json"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_and_lines_give_the_same(tmp_path: Path, suffix: str, indent: int | None) -> None:
    samples = [SAMPLE, changed(SAMPLE, "filename", to="two.cs"), SAMPLE]
    text = json.dumps(samples, indent=indent)
    listed = read_varmisuse([write(tmp_path / f"l{suffix}", text.encode())], progress=False)
    lined = read("varmisuse", tmp_path, *samples)
    assert listed.metadata["files"] == lined.metadata["files"] == ["src/one.cs", "two.cs"]
    assert listed.column("file").tolist() == [0, 1, 0]
    assert listed.column("line").tolist() == [1, 2, 3]
    for name, values in lined.columns.items():
        np.testing.assert_array_equal(listed.columns[name], values)


def test_a_list_longer_than_a_block_of_the_file(tmp_path: Path) -> None:
    long = changed(SAMPLE, "ContextGraph", "NodeLabels", "1", to="é" * 700_000)
    samples = [SAMPLE, long, SAMPLE, long, SAMPLE]
    file = write(tmp_path / "l.gz", json.dumps(samples, ensure_ascii=False).encode())
    assert [sample.content for sample in json_samples([file], progress=False)] == samples


def test_several_files_and_a_limit(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl.gz", lines(SAMPLE, without(SAMPLE, "filename")))
    two = write(tmp_path / "2.jsonl", b"\n" + lines(SAMPLE))
    table = read_varmisuse([one, two], progress=False)
    assert table.metadata["files"] == ["src/one.cs", "1.jsonl.gz"]
    assert table.column("line").tolist() == [1, 2, 2]
    assert len(read_varmisuse([one, two], limit=2, progress=False)) == 2
    with pytest.raises(ValueError, match="limit is 0"):
        read_varmisuse([one], limit=0, progress=False)


def test_a_graph_with_a_hub(tmp_path: Path) -> None:
    count = 3000
    labels = {str(i): f"leaf{i}" for i in range(count)}
    edges = {"Child": [[0, i] for i in range(count)], "LastLexicalUse": [[2, 4], [3, 5]]}
    sample = changed(SAMPLE, "ContextGraph", to={"Edges": edges, "NodeLabels": labels})
    sample["SlotDummyNode"] = 1
    for k, candidate in enumerate(sample["SymbolCandidates"]):
        candidate["SymbolDummyNode"] = 2 + k
    table = read("varmisuse", tmp_path, sample)
    check_contract(table)
    (graph,) = table
    assert np.bincount(graph.senders, minlength=count).max() == count + 1
    assert graph.num_edges == 2 * (count + 2)


GRAPH, EDGES, LABELS = "ContextGraph", ("ContextGraph", "Edges"), ("ContextGraph", "NodeLabels")
CANDIDATES = "SymbolCandidates"
BAD: dict[str, tuple[str, Any, str]] = {
    "no candidates": ("varmisuse", changed(SAMPLE, CANDIDATES, to=[]), "SymbolCandidates.*no cand"),
    "one candidate only": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, to=SAMPLE[CANDIDATES][:1]),
        "SymbolCandidates.*nothing to choose",
    ),
    "two right answers": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 1, "IsCorrect", to=True),
        "SymbolCandidates.*2 of 2 candidates are right",
    ),
    "no right answer": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 0, "IsCorrect", to=False),
        "SymbolCandidates.*0 of 2 candidates are right",
    ),
    "a candidate twice": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 1, "SymbolDummyNode", to=6),
        r"two candidates have one node in \[6, 6\]",
    ),
    "the slot is a candidate": (
        "varmisuse",
        changed(SAMPLE, "SlotDummyNode", to=7),
        "node 7 is the slot itself",
    ),
    "an edge to a missing node": (
        "varmisuse",
        changed(SAMPLE, *EDGES, "Child", to=[[5, 0], [5, 8]]),
        r"'Edges', type 'Child': \[5, 8\] leaves the nodes 0 to 7",
    ),
    "an edge from a negative node": (
        "varmisuse",
        changed(SAMPLE, *EDGES, "Child", to=[[-1, 0]]),
        r"'Child': \[-1, 0\] leaves the nodes 0 to 7",
    ),
    "edges that are no pairs": (
        "varmisuse",
        changed(SAMPLE, *EDGES, "Child", to=[[5, 0], [1]]),
        "'Child': not a list of",
    ),
    "edges of text": (
        "varmisuse",
        changed(SAMPLE, *EDGES, "Child", to=[["5", "0"]]),
        "'Child': not a list of",
    ),
    "edges without types": ("varmisuse", changed(SAMPLE, *EDGES, to=[[0, 1]]), "'Edges'"),
    "an unknown type of edge": (
        "varmisuse",
        changed(SAMPLE, *EDGES, "Childs", to=[]),
        f"type 'Childs': no such type; choose from {', '.join(EDGE_TYPES)}",
    ),
    "a slot that is no node": (
        "varmisuse",
        changed(SAMPLE, "SlotDummyNode", to=8),
        "'SlotDummyNode': 8 is none of the nodes 0 to 7",
    ),
    "a candidate that is no node": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 0, "SymbolDummyNode", to="6x"),
        "'SymbolDummyNode': 6x is none of the nodes",
    ),
    "a candidate that may be right": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 0, "IsCorrect", to="yes"),
        "IsCorrect of node 6 is neither",
    ),
    "a candidate that is a number": (
        "varmisuse",
        changed(SAMPLE, CANDIDATES, 0, to=6),
        "'SymbolCandidates': a int, not an object",
    ),
    "candidates in an object": ("varmisuse", changed(SAMPLE, CANDIDATES, to={}), "not a list"),
    "labels with a gap": (
        "varmisuse",
        changed(SAMPLE, *LABELS, to={"0": "a", "1": "b", "3": "c"}),
        "'NodeLabels': node 2 has none, but there are 3",
    ),
    "a label that is no text": (
        "varmisuse",
        changed(SAMPLE, *LABELS, "2", to=5),
        "'NodeLabels': 5 of node 2 is not text",
    ),
    "no labels": ("varmisuse", changed(SAMPLE, *LABELS, to={}), "'NodeLabels'"),
    "a file name that is no text": ("varmisuse", changed(SAMPLE, "filename", to=3), "'filename'"),
    "no graph": ("varmisuse", without(SAMPLE, GRAPH), "no field 'ContextGraph'; it has filename"),
    "no slot": ("varmisuse", without(SAMPLE, "SlotDummyNode"), "no field 'SlotDummyNode'"),
    "no list of candidates": ("varmisuse", without(SAMPLE, CANDIDATES), "no field 'SymbolCand"),
    "no edges in the graph": (
        "varmisuse",
        changed(SAMPLE, GRAPH, to=without(SAMPLE[GRAPH], "Edges")),
        "field 'ContextGraph': no field 'Edges'",
    ),
    "a graph that is a list": (
        "varmisuse",
        changed(SAMPLE, GRAPH, to=[]),
        "'ContextGraph': a list",
    ),
    "a number": ("varmisuse", 5, "a int, not an object with the fields ContextGraph"),
    "great: a text": ("great", "x", "a str, not an object with the fields source_tokens"),
    **{
        f"great: no {name}": ("great", without(GREAT, name), f"no field '{name}'")
        for name in GREAT
        if name != "provenances"
    },
    "great: no candidates": (
        "great",
        changed(GREAT, "repair_candidates", to=["self"]),
        "'repair_candidates': no candidates",
    ),
    "great: two right answers": (
        "great",
        changed(GREAT, "repair_targets", to=[3, 1]),
        "'repair_targets': they name key, self",
    ),
    "great: a target that is no token": (
        "great",
        changed(GREAT, "repair_targets", to=[14]),
        "'repair_targets': 14 is none of the nodes 0 to 13",
    ),
    "great: an edge to a missing node": (
        "great",
        changed(GREAT, "edges", 0, 1, to=99),
        "'edges', field 'after': 99 is none of the nodes 0 to 13",
    ),
    "great: an unknown kind of edge": (
        "great",
        changed(GREAT, "edges", 0, 3, to="FIELD"),
        "'edges': no kind 'FIELD'; choose from enum_FIELD",
    ),
    "great: a kind that is a list": ("great", changed(GREAT, "edges", 0, 3, to=[]), "no kind"),
    "great: an edge of three": ("great", changed(GREAT, "edges", 0, to=[1, 2, 3]), r"\[1, 2, 3\]"),
    "great: edges in an object": ("great", changed(GREAT, "edges", to={}), "'edges': not a list"),
    "great: tokens of numbers": ("great", changed(GREAT, "source_tokens", 0, to=1), "not a list"),
    "great: candidates in a text": (
        "great",
        changed(GREAT, "repair_candidates", to="a"),
        "not a l",
    ),
    "great: has_bug is a number": ("great", changed(GREAT, "has_bug", to=1), "'has_bug'"),
    "great: an error that is no token": (
        "great",
        changed(GREAT, "error_location", to=-1),
        "'error_location': -1 is none",
    ),
    "great: no provenance": ("great", changed(GREAT, "provenances", to=[]), "'provenances'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_sample_is_named_or_skipped(tmp_path: Path, case: str) -> None:
    name, bad, message = BAD[case]
    good = READERS[name][1]
    with pytest.raises(DataError, match=rf"s\.jsonl\.gz, line 2\b.*{message}"):
        read(name, tmp_path, good, bad, good)
    table = read(name, tmp_path, good, bad, good, skip_bad=True)
    assert table.column("line").tolist() == [1, 3]
    assert list(table.metadata["skipped"].values()) == [1]
    with pytest.raises(DataError, match="no sample can be used"):
        read(name, tmp_path, bad, skip_bad=True)


@pytest.mark.parametrize("name", READERS)
def test_a_line_that_is_not_json(tmp_path: Path, name: str) -> None:
    reader, good = READERS[name]
    for bad in (b'{"a": \n', b"\xff\xfe\n", b"{" * 3 + b"\n", b'{"a":' * 200_000 + b"\n"):
        file = write(tmp_path / "s.jsonl.gz", lines(good) + bad + lines(good))
        with pytest.raises(DataError, match=r"s\.jsonl\.gz, line 2: not JSON"):
            reader([file], progress=False)
        table = reader([file], skip_bad=True, progress=False)
        assert (len(table), table.metadata["skipped"]) == (2, {"not JSON": 1})


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("skip_bad", [True, False])
def test_files_that_cannot_be_read(tmp_path: Path, name: str, skip_bad: bool) -> None:
    reader, good = READERS[name]

    def message(content: bytes) -> str:
        file = tmp_path / "f.jsonl.gz"
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"f\.jsonl\.gz") as caught:
            reader([file], skip_bad=skip_bad, progress=False)
        return str(caught.value)

    for empty in (b"", b"\n\n", gzip.compress(b""), b"[]", gzip.compress(b" [ ] ")):
        assert message(empty).endswith("holds no samples")
    many = lines(*[good] * 50)
    assert "is cut or damaged after" in message(gzip.compress(many)[:-20])
    assert "is cut or damaged after 0" in message(gzip.compress(lines(good))[:40])
    packed = bytearray(gzip.compress(many))
    packed[-5] ^= 255
    assert "is cut or damaged after" in message(bytes(packed))
    with pytest.raises(DataError, match=r"nowhere\.gz is not a file"):
        reader([tmp_path / "nowhere.gz"], skip_bad=skip_bad, progress=False)
    with pytest.raises(DataError, match="name the files themselves, not their folder"):
        reader([tmp_path], skip_bad=skip_bad, progress=False)
    with pytest.raises(DataError, match="no files to read"):
        reader([], skip_bad=skip_bad, progress=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a": ', "item 2: not JSON, or cut off"),
        ('[{"a": 1} {"a": 1}]', "neither a comma nor the list's end after item 1"),
        ('[{"a": 1}', "neither a comma nor the list's end after item 1"),
        ('[{"a": 1}, ', "item 2: not JSON, or cut off"),
        ('[{"a": 1},]', "item 2: not JSON"),
        ("[", "item 1: not JSON"),
        ('[{"a": 1}] [', "more text after the end of the list"),
    ],
)
def test_a_damaged_list(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "l.gz", text.encode())
    with pytest.raises(DataError, match=rf"l\.gz.*{message}") as caught:
        list(json_samples([file], progress=False))
    assert not isinstance(caught.value, BadSample)


def test_items_of_a_list_that_are_no_objects(tmp_path: Path) -> None:
    file = write(tmp_path / "l.gz", json.dumps([SAMPLE, [1], SAMPLE]).encode())
    with pytest.raises(DataError, match=r"l\.gz, item 2: a list, not an object"):
        read_varmisuse([file], progress=False)
    table = read_varmisuse([file], skip_bad=True, progress=False)
    assert (len(table), table.metadata["skipped"]) == (2, {"not an object": 1})


def test_a_line_that_is_too_long(tmp_path: Path) -> None:
    rows = [b'{"a": 1}', b'{"b": "' + b"x" * 5000 + b'"}', b'{"c": 3}']
    file = write(tmp_path / "s.jsonl", b"\n".join(rows))
    got = [sample.content for sample in json_samples([file], progress=False, longest=100)]
    assert (got[0], got[2]) == ({"a": 1}, {"c": 3})
    assert isinstance(got[1], BadSample)
    assert str(got[1]).endswith("s.jsonl, line 2: longer than 100 bytes")
    exact = len(rows[1]) + 1
    longer = [sample.content for sample in json_samples([file], progress=False, longest=exact)]
    assert longer[1] == {"b": "x" * 5000}
    listed = write(tmp_path / "l.gz", b'[{"b": "' + b"x" * 3_000_000)
    with pytest.raises(DataError, match="item 1: longer than 1,000 characters, or not JSON"):
        list(json_samples([listed], progress=False, longest=1000))


def great_graph(table: GraphTable, tokens: list[str]) -> tuple[Graph, dict[int, Any]]:
    """The one graph, and for each node its label, upper case for candidates."""
    (graph,) = table
    labels = {label_buckets(label): label for label in [*tokens, SLOT_LABEL]}
    names = {}
    for node, words in enumerate(graph.nodes["subtokens"].tolist()):
        label = labels[tuple(words)]
        names[node] = label.upper() if graph.nodes["role"][node] == CANDIDATE else label
    return graph, names


def test_a_bug_of_great(tmp_path: Path) -> None:
    tokens = ["get", "self", ",", "key", ")", "return", "it", ".", "find", "(", "self", "]"]
    tokens += ["+", "end"]
    sample = changed(GREAT, "source_tokens", to=tokens)
    sample["edges"] = [
        [0, 4, 7, "enum_FIELD"],
        [9, 10, 9, "enum_NEXT_SYNTAX"],
        [0, 10, 4, "enum_COMPUTED_FROM"],
        [13, 10, 10, "enum_LAST_LEXICAL_USE"],
        [10, 1, 10, "enum_LAST_LEXICAL_USE"],
        [10, 10, 2, "enum_LAST_READ"],
        [13, 3, 3, "enum_LAST_WRITE"],
        [5, 6, 1, "enum_CFG_NEXT"],
    ]
    table = read("great", tmp_path, changed(sample, "repair_candidates", to=[1, 10, 3, 8]))
    check_contract(table)
    graph, names = great_graph(table, tokens)
    assert graph.num_nodes == len(tokens) + 3
    assert edges_of(graph, names) == {
        ("Child", "get", ")"),
        ("NextToken", "(", SLOT_LABEL),
        ("ComputedFrom", "get", SLOT_LABEL),
        ("LastLexicalUse", "end", "self"),  # over the slot, which has no name any more
        ("LastLexicalUse", "SELF", "self"),
        ("LastLexicalUse", "KEY", "key"),
        ("LastWrite", "end", "key"),
        ("LastWrite", "KEY", "key"),
    }  # `find` stands after a dot: an attribute, no use
    assert names[int(np.flatnonzero(graph.nodes["correct"])[0])] == "KEY"
    assert names[int(np.flatnonzero(graph.nodes["recent"])[0])] == "KEY"
    assert names[int(np.flatnonzero(graph.nodes["role"] == SLOT)[0])] == SLOT_LABEL
    assert list(names.values()).count("self") == 1
    assert table.metadata["files"] == ["me/it/get.py"]
    assert (table.column("line").tolist(), table.column("column").tolist()) == ([1], [10])
    assert table.metadata["edges left out"] == {"enum_CFG_NEXT": 1}


def with_wrong_name(wrong: str) -> dict[str, Any]:
    """`a b c a b ( c ) a b` with another name in the place of the second c, and its edges."""
    tokens = f"a b c a b ( {wrong} ) a b".split()
    edges: list[list[Any]] = [[i, i + 1, 9, "enum_NEXT_SYNTAX"] for i in range(len(tokens) - 1)]
    for i, token in enumerate(tokens):
        before = [k for k in range(i) if tokens[k] == token and token in "abc"]
        if before:
            edges.append([i, before[-1], 10, "enum_LAST_LEXICAL_USE"])
            edges.append([i, before[0], 3, "enum_LAST_WRITE"])
        if len(before) > 1:
            edges.append([i, before[-1], 2, "enum_LAST_READ"])
    return {
        **GREAT,
        "source_tokens": tokens,
        "edges": edges,
        "error_location": 6,
        "repair_targets": [2],
        "repair_candidates": [i for i, token in enumerate(tokens) if token in "abc"],
    }


def test_the_slot_does_not_tell_which_name_was_there(tmp_path: Path) -> None:
    first, second = (read("great", tmp_path, with_wrong_name(wrong)) for wrong in "ab")
    assert first.total_edges > 0
    for name, values in first.columns.items():
        np.testing.assert_array_equal(second.columns[name], values)


def test_great_without_a_bug(tmp_path: Path) -> None:
    sound = {**GREAT, "has_bug": False, "error_location": 0, "repair_targets": []}
    sound["edges"] = [*GREAT["edges"], [13, 3, 3, "enum_LAST_WRITE"]]
    sound["source_tokens"] = [*GREAT["source_tokens"][:13], "key"]
    table = read("great", tmp_path, *[sound] * 8)
    check_contract(table)
    places = table.column("column").tolist()
    assert set(places) == {6, 10, 13}  # reads; 1 and 3 are written to
    for graph, place in zip(table, places, strict=True):
        words = tuple(graph.nodes["subtokens"][graph.nodes["correct"] == 1][0].tolist())
        assert words == label_buckets(sound["source_tokens"][place])
    assert read("great", tmp_path, *[sound] * 8).column("column").tolist() == places


def test_samples_of_great_without_an_answer_are_counted(tmp_path: Path) -> None:
    table = read(
        "great",
        tmp_path,
        GREAT,
        changed(GREAT, "repair_targets", to=[]),
        changed(GREAT, "repair_targets", to=[0]),
        {**GREAT, "has_bug": False, "edges": []},
        changed({**GREAT, "repair_targets": [1]}, "repair_candidates", to=[1, 6]),
    )
    assert len(table) == 1
    assert table.metadata["skipped"] == {
        "a bug without repair targets": 1,
        "a repair target that is no candidate": 1,
        "no bug, and no read of a variable": 1,
        "one candidate only": 1,
    }


def test_every_kind_of_great_has_a_type_or_none() -> None:
    assert {name for name in GREAT_EDGES.values() if name} < set(EDGE_TYPES)


def test_the_real_files_of_great() -> None:
    folder = SHARED / "great_varmisuse"
    if not folder.exists():
        pytest.skip("GREAT is not here")
    table = read_great(sorted(folder.glob("*.jsonl.gz")), progress=False)
    check_contract(table)
    skipped = table.metadata["skipped"]
    assert len(table) + sum(skipped.values()) == 2269
    assert sum(skipped.values()) < 50
    graph_of = np.repeat(np.arange(len(table)), table.num_nodes)
    choices = np.bincount(graph_of[table.column("role") == CANDIDATE])
    assert 4 < choices.mean() < 5
    hits = int((table.column("correct") & table.column("recent")).sum())
    assert 0.1 < hits / len(table) < 0.4
    assert len(table.metadata["files"]) > 1000


@pytest.mark.parametrize("name", READERS)
def test_they_are_in_the_catalogue(tmp_path: Path, name: str) -> None:
    sample = READERS[name][1]
    files = [write(tmp_path / f"{i}.jsonl.gz", lines(sample)) for i in range(2)]
    table = load(name, files=files, data_dir=tmp_path / "data", progress=False)
    check_contract(table)
    assert table.path == tmp_path / "data" / f"{name}.weft"
    assert len(table) == 2
    assert table.metadata["read"] == ["0.jsonl.gz", "1.jsonl.gz"]
    with pytest.raises(DataError, match=f"'{name}' needs the files to read.*--files"):
        load(name, data_dir=tmp_path / "other", progress=False)
