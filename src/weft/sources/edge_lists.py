"""Edge lists as text: `src dst [time] [weight]` lines, as SNAP publishes them, and node labels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from weft.errors import DataError
from weft.files import DAMAGE, text_lines, unpacked
from weft.graphs import Array, Graph
from weft.sources import edge_list_parser as loops
from weft.sources.config import EdgeColumn

IdKind = Literal["auto", "integer", "text"]

_BLOCK_BYTES = 16 * 2**20
_LONGEST_LINE = 2**20
_UTF8_MARK = b"\xef\xbb\xbf"
_ROLES = {"src": loops.SRC, "dst": loops.DST, "time": loops.TIME, "weight": loops.WEIGHT}
HEADINGS: dict[str, EdgeColumn] = {
    **dict.fromkeys(("src", "source", "from", "sender"), "src"),
    **dict.fromkeys(("dst", "target", "to", "destination", "receiver"), "dst"),
    **dict.fromkeys(("time", "timestamp"), "time"),
    **dict.fromkeys(("weight", "edge_weight"), "weight"),
}
"""What columns of edges are usually called."""
_TOKEN_MASK = 2**32 - 1
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EdgeList:
    """e edges between n nodes in the order of their file.

    Attributes:
        senders: int32 [e] (int64 beyond 2^31 nodes), nodes numbered 0 to n - 1.
        receivers: the same, [e].
        time: float64 [e], in the file's unit, or None. Whole numbers are exact up to 2^53.
        weight: float64 [e], or None.
        ids: [n], what the file calls each node, ascending: int64, or str objects for names.
        skipped: malformed lines left out.
    """

    senders: Array
    receivers: Array
    time: Array | None = None
    weight: Array | None = None
    ids: Array
    skipped: int = 0

    @property
    def num_nodes(self) -> int:
        """The number of nodes n, all of which have an edge if they were read from a file."""
        return int(self.ids.shape[0])

    @property
    def num_edges(self) -> int:
        """The number of edges e."""
        return int(self.senders.shape[0])

    def __repr__(self) -> str:
        columns = [name for name in ("time", "weight") if getattr(self, name) is not None]
        return (
            f"EdgeList({self.num_nodes:,} nodes, {self.num_edges:,} edges, "
            f"columns: {', '.join(columns) or 'none'}, {self.skipped:,} lines skipped)"
        )


def edge_list_graph(edges: EdgeList) -> Graph:
    """The directed multigraph of the list, with `time` and `weight` as edge columns.

    What the file calls the nodes is the node column `id`, int64 [n], or for names the ragged
    column `names`: UTF-8 text, a name for each node, with a line feed after each.
    """
    named = edges.ids.dtype == object
    columns = {"time": edges.time, "weight": edges.weight}
    return Graph(
        num_nodes=edges.num_nodes,
        senders=edges.senders,
        receivers=edges.receivers,
        nodes={} if named else {"id": edges.ids},
        ragged={"names": text_column(edges.ids)} if named else {},
        edges={name: values for name, values in columns.items() if values is not None},
    )


def text_column(lines: Iterable[str]) -> Array:
    """Names as a ragged column: UTF-8 bytes, a line feed after each."""
    return _bytes("".join(f"{line}\n" for line in lines).encode())


def column_lines(column: Array) -> list[str]:
    """The names in such a column."""
    return bytes(column).decode().split("\n")[:-1]


def both_directions(senders: Array, receivers: Array, num_nodes: int) -> tuple[Array, Array]:
    """Senders and receivers of the undirected simple graph of these edges.

    Every edge appears once in each direction, sorted by (receiver, sender); self-loops are gone.
    """
    low = np.minimum(senders, receivers).astype(np.int64)
    high = np.maximum(senders, receivers)
    pairs = _sorted_distinct((low * num_nodes + high)[low != high])
    low, high = np.divmod(pairs, num_nodes)
    keys = np.concatenate([pairs, high * num_nodes + low])
    keys.sort()
    new_receivers, new_senders = np.divmod(keys, num_nodes)
    dtype = index_dtype(num_nodes)
    return new_senders.astype(dtype), new_receivers.astype(dtype)


def _sorted_distinct(values: Array) -> Array:
    # numpy's own `unique` hashes integers since 2.3, which is several times slower than sorting.
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def index_dtype(num_nodes: int) -> np.dtype[np.signedinteger]:
    """The narrowest dtype of node numbers that the kernels take: int32, or int64 if it must be."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def read_edge_list(
    path: str | Path,
    *,
    columns: Sequence[EdgeColumn] = ("src", "dst", "time"),
    ids: IdKind = "auto",
    skip_malformed: bool = False,
) -> EdgeList:
    """Read a text file, plain or gzip, with an edge on each line; or a Parquet or .npy file.

    Tokens are separated by blanks, tabs or a comma; blank lines and lines that begin with # or %
    are passed over. The file is read in blocks: memory holds the result and the file's node ids as
    int64.

    Args:
        path: the file.
        columns: what the tokens of a line are, in order; a line has exactly these.
        ids: whether nodes are called by whole numbers or by names (`text`, slower). `auto` lets
            the first edge decide, unless it looks like a header: names, and numbers after it.
            With `integer` such a line can be nothing else, and is passed over. A first line of
            usual names of columns (source, target, weight, ...) is passed over with any kind.
        skip_malformed: count malformed lines in `skipped` instead of raising.

    Raises:
        DataError: the file cannot be read; or a line has too few or too many tokens, an id or
            number that is none, a time or weight that is not finite, or a negative time; the
            message has file, line number and line.
    """
    path = Path(path)
    _roles(columns)
    if ids not in get_args(IdKind):
        raise ValueError(f"ids is {ids!r}; choose from {list(get_args(IdKind))}")
    parts: dict[str, list[Array]] = {name: [] for name in columns}
    names: dict[bytes, int] = {}
    skipped: list[int] | None = [] if skip_malformed else None
    for block in edge_blocks(path, columns=columns, ids=ids, names=names, skipped=skipped):
        for name, values in block.items():
            parts[name].append(values)
    if names:
        labels, lookup = _sorted_names(path, names)
    else:
        labels, lookup = _compact_numbers([*parts["src"], *parts["dst"]])
    dtype = index_dtype(len(labels))
    return EdgeList(
        senders=_concatenated(parts.pop("src"), dtype, lookup),
        receivers=_concatenated(parts.pop("dst"), dtype, lookup),
        time=_concatenated(parts.pop("time"), np.float64) if "time" in parts else None,
        weight=_concatenated(parts.pop("weight"), np.float64) if "weight" in parts else None,
        ids=labels,
        skipped=sum(skipped or ()),
    )


def edge_blocks(
    path: Path,
    *,
    columns: Sequence[EdgeColumn],
    ids: IdKind = "integer",
    names: dict[bytes, int] | None = None,
    skipped: list[int] | None = None,
) -> Iterator[dict[str, Array]]:
    """The edges of a file in blocks, in its order, for those who cannot hold them all.

    Args:
        path: text, plain or gzip; `.parquet`; or `.npy` of whole numbers, [e, 2] or [2, e].
        columns: see `read_edge_list`, and `ids` too.
        ids: kind of the ids.
        names: gets the number of each name, in order of first appearance, where nodes have names.
        skipped: gets the number of malformed lines of each block; None raises for the first.

    Returns:
        Blocks of the columns by name: ids (or numbers of names) int64, the others float64.

    Raises:
        DataError: as `read_edge_list`.
    """
    names = {} if names is None else names
    if path.suffix in (".parquet", ".npy"):
        from weft.sources.stored_edges import stored_edge_blocks

        yield from stored_edge_blocks(path, columns, ids, names)
        return
    roles = _roles(columns)
    text = None if ids == "auto" else ids == "text"
    first_line = 1
    for block in _blocks(path):
        if first_line == 1 and (header := _header_end(path, block, columns, ids)):
            first_line += block.count(b"\n", 0, header)
            block = block[header:]
        if text is None:
            text = _first_ids_are_text(path, block, roles, first_line)
        # Without one whole edge the kind of ids is unknown, and they are not at fault.
        named, skip = text is not False, skipped is not None
        rows, lines, passed = _parse(path, block, roles, named, skip, first_line, ids)
        if text:
            for name in ("src", "dst"):
                rows[name] = _number_names(block, rows[name], names)
        first_line += lines
        if skipped is not None:
            skipped.append(passed)
        yield rows


def listed_edges(path: Path) -> int:
    """About how many edges a file lists: of text its lines, comments and a header too."""
    if path.suffix in (".parquet", ".npy"):
        from weft.sources.stored_edges import stored_edges

        return stored_edges(path)
    return sum(block.count(b"\n") for block in _blocks(path))


def _roles(columns: Sequence[EdgeColumn]) -> Array:
    if not {"src", "dst"} <= set(columns) <= set(_ROLES) or len(set(columns)) != len(columns):
        raise ValueError(
            f"columns is {tuple(columns)}; name each token of a line once, from {list(_ROLES)}, "
            "with 'src' and 'dst' among them"
        )
    return np.array([_ROLES[name] for name in columns], dtype=np.int64)


def _blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes in blocks of whole lines."""
    tail = b""
    mark = _UTF8_MARK
    try:
        with unpacked(path) as (_, content):
            while chunk := content.read(_BLOCK_BYTES):
                chunk = chunk.removeprefix(mark)
                mark = b""
                cut = chunk.rfind(b"\n") + 1
                if cut:
                    yield tail + chunk[:cut]
                    tail = chunk[cut:]
                    continue
                tail += chunk
                if len(tail) > _LONGEST_LINE:
                    raise DataError(
                        f"{path} has a line of more than {_LONGEST_LINE} bytes: it is not an edge "
                        "list"
                    )
    except (OSError, *DAMAGE) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if tail:
        yield tail


def _header_end(path: Path, block: bytes, columns: Sequence[EdgeColumn], ids: IdKind) -> int:
    """Where the line after a header begins, or 0.

    A header has the usual names of the columns; or, where ids are whole numbers, no number, before
    a line of numbers.
    """
    found: list[list[bytes]] = []
    end = start = 0
    while len(found) < 2 and start < len(block):
        stop = block.find(b"\n", start) + 1 or len(block)
        line = block[start:stop].strip()
        start = stop
        if line and line[:1] not in b"#%":
            found.append(re.split(rb"\s*,\s*|\s+", line))
            end = end or stop
    if found and (called := roles_of_names([t.decode("latin1") for t in found[0]])):
        if len(called) == len(columns) and called != list(columns):
            raise DataError(
                f"{path}: its first line calls the columns {' '.join(called)}, but "
                f"{' '.join(columns)} is requested; pass --columns {' '.join(called)}"
            )
        return end
    if ids != "integer":
        return 0
    kinds = [{_NUMBER.fullmatch(token) is not None for token in tokens} for tokens in found]
    return end if kinds == [{False}, {True}] and len(found[0]) == len(found[1]) else 0


def roles_of_names(names: Sequence[str]) -> list[EdgeColumn] | None:
    """What columns of these names are; None unless all are known, and both ends among them."""
    called = [HEADINGS.get(name.strip("\"'").lower()) for name in names]
    known = [role for role in called if role is not None]
    both = {"src", "dst"} <= set(known) and len(set(known)) == len(names)
    return known if both and len(known) == len(names) else None


def _first_ids_are_text(path: Path, block: bytes, roles: Array, first_line: int) -> bool | None:
    """Whether an id of the block's first edge is not a whole number; None without an edge."""
    ends = np.empty((2, 2), dtype=np.int64)
    numbers = np.empty((2, 2), dtype=np.float64)
    rows = loops.parse_lines(_bytes(block), roles, True, True, *ends, *numbers)[0]
    whole = [
        [_WHOLE.fullmatch(block, at >> 32, at & _TOKEN_MASK) is not None for at in edge]
        for edge in ends[:, :rows].T.tolist()
    ]
    if whole == [[False, False], [True, True]]:
        line = first_line + block.count(b"\n", 0, int(ends[0, 0]) >> 32)
        raise DataError(
            f"{path}: line {line} looks like a header; put # before it, or pass ids='text' if it "
            "is an edge"
        )
    return not all(whole[0]) if whole else None


def _parse(
    path: Path, block: bytes, roles: Array, text: bool, skip: bool, first_line: int, ids: IdKind
) -> tuple[dict[str, Array], int, int]:
    """The columns of a block's edges (ids of kind text as places in it), lines seen, skipped."""
    most = block.count(b"\n") + 1
    columns: dict[int, Array] = {
        role: np.empty(most if role in roles else 0, np.int64 if role < loops.TIME else np.float64)
        for role in _ROLES.values()
    }
    count, seen, skipped, status, start, hard = loops.parse_lines(
        _bytes(block), roles, text, skip, *columns.values()
    )
    if status != loops.OK:
        stop = block.find(b"\n", start)
        line = block[start : stop if stop >= 0 else len(block)].decode("utf-8", "replace").strip()
        shown = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
        reason = _reason(status, roles, ids)
        raise DataError(f"{path}, line {first_line + seen - 1}: {reason}; the line is {shown!r}")
    for row, role, first, last in hard.tolist():
        columns[role][row] = float(block[first:last])
    # A block of comments must not keep its scratch arrays alive.
    found = {
        name: columns[role][:count].copy() if count < most - 1 else columns[role][:count]
        for name, role in _ROLES.items()
        if role in roles
    }
    return found, seen, skipped


def _reason(status: int, roles: Array, ids: IdKind) -> str:
    names = [name for role in roles.tolist() for name, known in _ROLES.items() if known == role]
    wanted = f"{len(names)} tokens ({', '.join(names)}) expected"
    auto = " (the first edge's ids are; if nodes have names, pass ids='text')"
    return {
        loops.TOO_FEW: f"{wanted}, fewer found",
        loops.TOO_MANY: f"{wanted}, more found: name them all (columns, --columns)",
        loops.EMPTY_FIELD: f"{wanted}, one is empty",
        loops.BAD_ID: "a node id is not a whole number"
        + (auto if ids == "auto" else "; if the line is a header, remove it"),
        loops.HUGE_ID: "a node id does not fit 64 bits (pass ids='text' to take ids as names)",
        loops.BAD_NUMBER: "a time or weight is not a finite decimal number",
        loops.HUGE_NUMBER: "a time or weight is beyond 1e308",
        loops.NEGATIVE_TIME: "the time is negative; times count from 0 (a weight may be negative)",
    }[status]


def _bytes(block: bytes) -> Array:
    return np.frombuffer(block, dtype=np.uint8)


def _number_names(block: bytes, tokens: Array, names: dict[bytes, int]) -> Array:
    """Numbers of the names at these places of the block, in order of first appearance."""
    number = names.setdefault
    return np.array(
        [number(block[at >> 32 : at & _TOKEN_MASK], len(names)) for at in tokens.tolist()],
        dtype=np.int64,
    )


def _sorted_names(path: Path, names: dict[bytes, int]) -> tuple[Array, Callable[[Array], Array]]:
    labels = np.empty(len(names), dtype=object)
    # UTF-8 sorts like the characters it encodes.
    ordered = sorted(names)
    for i, name in enumerate(ordered):
        try:
            labels[i] = name.decode()
        except UnicodeDecodeError:
            raise DataError(
                f"{path}: the node id {name!r} is not UTF-8; convert the file"
            ) from None
    rank = np.empty(len(names), dtype=np.int64)
    rank[[names[name] for name in ordered]] = np.arange(len(names))
    return labels, rank.__getitem__


def _compact_numbers(blocks: list[Array]) -> tuple[Array, Callable[[Array], Array]]:
    """The ascending distinct ids of all blocks, and the function from ids to 0..n-1."""
    blocks = [block for block in blocks if block.size]
    if not blocks:
        return np.empty(0, dtype=np.int64), lambda block: block
    low = min(int(block.min()) for block in blocks)
    span = max(int(block.max()) for block in blocks) - low + 1
    # A table of all ids in the range is several times faster than sorting, if it is small enough.
    if span <= max(2**20, 4 * sum(block.size for block in blocks)):
        present = np.zeros(span, dtype=np.bool_)
        for block in blocks:
            present[block - low] = True
        rank = np.cumsum(present, dtype=index_dtype(span)) - 1
        return np.flatnonzero(present) + low, lambda block: rank[block - low]
    ids = _sorted_distinct(np.concatenate([_sorted_distinct(block) for block in blocks]))
    slots = loops.hash_ids(ids, 1 << (2 * len(ids)).bit_length())
    return ids, lambda block: loops.find_ids(ids, slots, block)


def _concatenated(
    blocks: list[Array], dtype: np.typing.DTypeLike, lookup: Callable[[Array], Array] | None = None
) -> Array:
    """All blocks as one array, each let go as soon as it is copied."""
    out = np.empty(sum(block.size for block in blocks), dtype=dtype)
    at = 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        out[at : at + block.size] = block if lookup is None else lookup(block)
        at += block.size
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeLabels:
    """Classes of nodes.

    Attributes:
        y: int64 [n], each node's class, 0..c-1; -1 for a node without.
        classes: what the file calls them, in order.
        unknown: lines that name a node which the graph does not have.
    """

    y: Array
    classes: tuple[str, ...]
    unknown: int


def read_node_labels(path: str | Path, ids: Array) -> NodeLabels:
    """Read a text file, plain or gzip, with `node label` on each line.

    Tokens are separated by blanks, tabs or a comma; blank lines and lines that begin with # or %
    are passed over. Labels are whole numbers or names; classes are numbered in their order.

    Args:
        path: the file.
        ids: [n], what each node is called, as in `EdgeList.ids`.

    Raises:
        DataError: the file cannot be read, a line has not two tokens, a node has two classes, or
            no node has any; the message has file and line.
    """
    path = Path(path)
    places = {str(name): place for place, name in enumerate(ids.tolist())}
    found: dict[int, str] = {}
    unknown = 0
    for number, line in text_lines(path):
        if not line.strip() or line.lstrip()[0] in "#%":
            continue
        tokens = line.replace(",", " ").split()
        if len(tokens) != 2:
            raise DataError(
                f"{path}, line {number}: 2 tokens (node, label) expected; the line is "
                f"{line.strip()[:80]!r}"
            )
        place = places.get(tokens[0])
        if place is None:
            unknown += 1
        elif found.setdefault(place, tokens[1]) != tokens[1]:
            raise DataError(
                f"{path}, line {number}: node {tokens[0]} has the label {found[place]} already; a "
                "node has one class"
            )
    if not found:
        raise DataError(f"{path} labels none of the graph's {len(ids):,} nodes")
    names = set(found.values())
    try:
        classes = sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        classes = sorted(names)
    number_of = {name: number for number, name in enumerate(classes)}
    y = np.full(len(ids), -1, dtype=np.int64)
    y[list(found)] = [number_of[name] for name in found.values()]
    return NodeLabels(y=y, classes=tuple(classes), unknown=unknown)


def labelled_graph(edges: str | Path, labels: str | Path) -> Graph:
    """The graph of an edge list `src dst time` with the node column `y` of a file of labels.

    Nodes that have a label but no edge are left out, with a warning that counts them. What the
    file calls the classes is the ragged column `classes`: UTF-8 text, a line feed after each.
    """
    edge_list = read_edge_list(edges)
    found = read_node_labels(labels, edge_list.ids)
    if found.unknown:
        warnings.warn(
            f"{labels} labels {found.unknown:,} nodes that have no edge in {edges}; they are "
            "left out",
            stacklevel=2,
        )
    graph = edge_list_graph(edge_list)
    return replace(
        graph,
        nodes={**graph.nodes, "y": found.y},
        ragged={**graph.ragged, "classes": text_column(found.classes)},
    )
