import sys
from pathlib import Path

# The tests of this folder share modules, and run on ranks as those of the room beside it do;
# pytest's importlib mode adds no folder itself.
for folder in ("sparsify", "parallel"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
