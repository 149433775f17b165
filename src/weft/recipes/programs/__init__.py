"""Recipe: which variable belongs here, in programs."""
