"""Recipe: which nodes of a temporal graph are joined next."""
