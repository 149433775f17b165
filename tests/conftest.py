import os

# Threads that wait spin by default: beside any other busy process a small step takes ten times as
# long. Read when torch is loaded, so it is set before any test imports it; children inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
