"""Recipe: node classification on one graph that many ranks share."""
