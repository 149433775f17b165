"""Studies and benchmarks: weft beside its papers and its peers. The library never imports this."""
