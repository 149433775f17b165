"""Tasks that weft knows: their data, training, prediction, and what can be planned."""
