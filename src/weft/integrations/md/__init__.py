"""Molecular dynamics and relaxation with trained potentials: `weft md`."""
