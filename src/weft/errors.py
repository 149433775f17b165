"""The one error class for a user's mistake that is not a plain bad value."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be used as it is; the message names the file, line, graph or field."""
