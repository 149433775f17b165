"""Side by side with the peers: one JSON schema, raw samples kept, ratios within one run."""

from weft.bench.assemble import AssembleBench, bench_assemble
from weft.bench.citations import CitationsBench, bench_citations
from weft.bench.communication import CommunicationBench, bench_communication
from weft.bench.gcn import GCNBench, bench_gcn
from weft.bench.molecules import MoleculesBench, bench_molecules
from weft.bench.plan import PlanBench, bench_plan
from weft.bench.programs import ProgramsBench, bench_programs
from weft.bench.result import BenchResult, CaseResult, Contender, print_result
from weft.bench.sparse import SparseBench, bench_sparse

__all__ = [
    "AssembleBench",
    "BenchResult",
    "CaseResult",
    "CitationsBench",
    "CommunicationBench",
    "Contender",
    "GCNBench",
    "MoleculesBench",
    "PlanBench",
    "ProgramsBench",
    "SparseBench",
    "bench_assemble",
    "bench_citations",
    "bench_communication",
    "bench_gcn",
    "bench_molecules",
    "bench_plan",
    "bench_programs",
    "bench_sparse",
    "print_result",
]
