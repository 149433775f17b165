"""torch_geometric's layers, and own classes of its MessagePassing, on weft's loops."""

from __future__ import annotations

try:
    import torch_geometric  # noqa: F401
except ImportError as error:
    raise ImportError("this needs torch_geometric: pip install torch_geometric") from error
