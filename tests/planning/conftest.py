import sys
from pathlib import Path

# The tests of this folder share works.py; pytest's importlib mode adds no folder itself.
sys.path.insert(0, str(Path(__file__).parent))
