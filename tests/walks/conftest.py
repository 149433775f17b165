import sys
from pathlib import Path

# Test files are imported by path, so what they share must be found by name.
sys.path.insert(0, str(Path(__file__).parent))
