"""Feed-forward network that predicts links or classes from embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional

from weft.models.config import Activation, FNNConfig

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": functional.tanh,
    "sigmoid": functional.sigmoid,
}


class FNN(nn.Module):
    """Linear layers with an activation, and dropout, after all but the last.

    Args:
        widths: of the input, the hidden layers and the output, such as (64, 256, 128, 10).
        config: activation and dropout.
    """

    def __init__(self, widths: Sequence[int], config: FNNConfig | None = None) -> None:
        super().__init__()
        if len(widths) < 2 or not all(width > 0 for width in widths):
            raise ValueError(
                f"widths are {tuple(widths)}; an input and an output of at least 1 are needed"
            )
        self.config = config or FNNConfig()
        self.layers = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """Output [..., widths[-1]] for x [..., widths[0]]; no activation after the last layer."""
        activation = _ACTIVATIONS[self.config.activation]
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x)
            # A sparse layer in the place of a linear one may have computed it already.
            if not getattr(layer, "relu", False):
                x = activation(x)
            x = functional.dropout(x, self.config.dropout, self.training)
        output: Tensor = last(x)
        return output
