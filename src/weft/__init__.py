"""weft: sparse graphs woven into dense hardware."""

__version__ = "0.1.0"
