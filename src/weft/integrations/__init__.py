"""weft inside other libraries: batches for torch_geometric's loader, sparse training for Lightning.

Each module needs its library, and is imported only when it is needed.
"""
