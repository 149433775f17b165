"""`weft plan`: the commands."""

from __future__ import annotations

from typing import Any

from weft.cli.plan_full_graph import FullGraph
from weft.cli.plan_recipes import Citations, Crystals, Links, Molecules, Nodes, Programs

COMMANDS: dict[str, Any] = {
    "molecules": Molecules,
    "crystals": Crystals,
    "programs": Programs,
    "citations": Citations,
    "full-graph": FullGraph,
    "links": Links,
    "nodes": Nodes,
}
