"""Pages about studies."""
