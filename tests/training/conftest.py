import sys
from pathlib import Path

# The tests of this folder share small_fits.py, and elsewhere.py with those of parallel; pytest's
# importlib mode adds no folder itself.
for folder in ("parallel", "training"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
