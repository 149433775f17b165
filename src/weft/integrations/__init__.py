"""Other libraries' loops with weft's parts in them.

`torch_geometric` gives its loader weft's batches, `lightning` its trainer sparse training. Each
module needs its library; nothing here is imported before it is asked for.
"""
