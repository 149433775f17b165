"""Side by side with the peers: one JSON schema, raw samples kept, ratios within one run."""

from weft_lab.bench.assemble import AssembleBench, bench_assemble
from weft_lab.bench.citations import CitationsBench, bench_citations
from weft_lab.bench.communication import CommunicationBench, bench_communication
from weft_lab.bench.gcn import GCNBench, bench_gcn
from weft_lab.bench.molecules import MoleculesBench, bench_molecules
from weft_lab.bench.plan import PlanBench, bench_plan
from weft_lab.bench.programs import ProgramsBench, bench_programs
from weft_lab.bench.result import BenchResult, CaseResult, Contender, print_result
from weft_lab.bench.sparse import SparseBench, bench_sparse

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
