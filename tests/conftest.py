import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

# Threads that wait spin by default: beside any other busy process a small step takes ten times as
# long. Read when torch is loaded, so it is set before any test imports it; children inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Triton kernels run in triton's interpreter, which is chosen when a module with kernels is loaded.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests share modules, those of other rooms too; pytest's importlib mode adds no folder itself.
_here = Path(__file__).parent
for _folder in (_here, *sorted(path for path in _here.rglob("*") if path.is_dir())):
    if not {"__pycache__", "data"} & set(_folder.relative_to(_here).parts):
        sys.path.append(str(_folder))
# `weft`, which runs a command in this process, and small data for it.
pytest_plugins = ["command_fixtures"]

# What an example takes is the machine's affair: beside other programs any of them may take long,
# to be made or to be run.
hypothesis.settings.register_profile(
    "steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")

# Ranks of the tests outnumber any machine's GPUs, and what is compared are numbers of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _plain_arithmetic() -> Iterator[None]:
    """A command that trains flushes denormals in its process; the next test expects none of it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner times for a tenth of a second at a time: what it does with it is the same."""
    monkeypatch.setattr("weft.planning.search.TURN_SECONDS", 0.1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a disk of so many kB, a real one, where this machine lets tests mount any."""
    folder = tmp_path / "disk"

    def make(kilobytes: int) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            folder.rmdir()
            pytest.skip("this machine does not let tests mount a disk")
        return folder

    yield make
    if folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


_signals: list[socket.socket] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sends_sigint: the test interrupts its own process")
    config.addinivalue_line("markers", "slow: listed in slow_tests.txt")
    if threading.current_thread() is not threading.main_thread():
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup: what the tests start would inherit it, and some of them are hung up on.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Python writes every signal's number there, whoever handles it.
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    _signals.extend((ours, theirs))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _signals:
        signal.set_wakeup_fd(-1)
    while _signals:
        _signals.pop().close()


# Files that take half a minute or more. They are begun first: at the end of a run, nothing would be
# left for the other workers beside one of them.
_LONGEST = (
    *("test_docs", "test_full_graph", "test_network", "test_export", "test_triton_values"),
    *("test_site", "test_launch", "test_structures_export", "test_train_full_graph"),
    *("test_plan_recipes", "test_sparse", "test_graph_network", "test_before", "test_device"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = _here / "slow_tests.txt"
    slow = set(listed.read_text(encoding="utf-8").splitlines() if listed.exists() else ())
    for item in items:
        file = item.path.relative_to(_here).as_posix()
        if slow & {file, f"{file}::{item.name.partition('[')[0]}"}:
            item.add_marker("slow")
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Ctrl-C ends the suite also where the training under test has taken it for itself."""
    done = yield
    if _signals and _interrupted() and item.get_closest_marker("sends_sigint") is None:
        raise KeyboardInterrupt
    return done


def _interrupted() -> bool:
    try:
        return signal.SIGINT in _signals[0].recv(4096)
    except BlockingIOError:
        return False
