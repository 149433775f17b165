"""Ctrl-C at the suite: the first one ends it, whatever the code under test does with signals."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = """
from pathlib import Path

import torch
from torch import nn

from weft.training import FitConfig, fit


def test_a_training_that_never_ends():
    def loss(model, batch):
        Path("started").touch()
        return model(batch).square().mean()

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    fit(model, optimizer, [torch.ones(1, 1)], loss, config=FitConfig(epochs=10**9, quiet=True))


def test_the_next_one():
    Path("went-on").touch()
"""


def test_one_ctrl_c_ends_the_suite(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "command_fixtures.py").touch()
    (tmp_path / "test_long.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_long.py"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while not (tmp_path / "started").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 2, said
    assert "KeyboardInterrupt" in said
    assert not (tmp_path / "went-on").exists()
