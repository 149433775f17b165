"""The one class of user errors that are more than a bad value."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be used as it is; the message names the file, line, graph or field."""
