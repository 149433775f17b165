"""Recipe: classes of the nodes of one graph."""
