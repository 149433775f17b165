"""Ranks that end well, fail, are killed or do not answer: one sentence, no hang, no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import launch_cases
import pytest

from weft.errors import DataError
from weft.training.launch import RankError, launch

SECONDS = 600


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        # A zombie that its parent has not fetched yet runs no more.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("pid-*")]


def test_each_rank_gives_its_answer(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    found = launch(launch_cases.add, (2.0,), ranks=4, logs=tmp_path / "logs")
    assert [total for total, _, _ in found] == [12.0] * 4
    assert {threads for _, threads, _ in found} == {max(1, (os.cpu_count() or 1) // 4)}
    assert len({pid for _, _, pid in found}) == 4
    assert not any(is_alive(pid) for _, _, pid in found)
    assert (tmp_path / "logs" / "rank-3.log").read_text() == "rank 3 is done\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_killed_rank_ends_the_others_and_all_start_again(tmp_path):
    said: list[str] = []
    found = launch(
        launch_cases.killed,
        (str(tmp_path), 1, 1),
        ranks=2,
        logs=tmp_path / "logs",
        max_restarts=3,
        again=lambda: "epoch 40",
        tell=said.append,
    )
    assert found == ["whole"] * 2
    (text,) = said
    assert text.startswith("rank 1 was killed by SIGKILL")
    assert text.endswith("; restarting from epoch 40 (1 of 3)")


def test_restarts_are_counted(tmp_path):
    said: list[str] = []
    with pytest.raises(RankError, match=r"rank 0 was killed by SIGKILL.*also after 1 restarts"):
        launch(
            launch_cases.killed,
            (str(tmp_path), 0, 9),
            ranks=2,
            logs=tmp_path / "logs",
            max_restarts=1,
            tell=said.append,
        )
    assert len(said) == 1
    assert not any(is_alive(pid) for pid in pids(tmp_path))


def test_a_users_mistake_comes_once_and_is_not_tried_again(tmp_path, capfd):
    said: list[str] = []
    with pytest.raises(DataError) as caught:
        launch(
            launch_cases.mistaken,
            (1,),
            ranks=3,
            logs=tmp_path,
            max_restarts=3,
            tell=said.append,
        )
    assert type(caught.value) is DataError
    assert str(caught.value) == "rank 1: x.npy: row 3 is not finite; repair it"
    assert said == []
    assert "Traceback" in (tmp_path / "rank-1.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_the_message_is_that_of_the_first_and_not_of_those_that_wait_for_it(tmp_path):
    with pytest.raises(DataError, match=r"^rank 0: no data$"):
        launch(launch_cases.mistaken_first, ("no data",), ranks=3, logs=tmp_path)
    assert "rank 1 stops because rank 0 has" in (tmp_path / "rank-1.log").read_text()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("broken", "rank 1 failed with KeyError: 'weight'; the ranks' logs are in "),
        ("leaving", "rank 1 ended with exit code 3; the ranks' logs are in "),
        ("silent", "rank 0 could not reach another rank: "),
    ],
)
def test_one_sentence_names_the_rank_at_fault(tmp_path, case, words):
    with pytest.raises(RankError) as caught:
        launch(getattr(launch_cases, case), (1,), ranks=2, logs=tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("option", "value"), [("ranks", 0), ("max_restarts", -1)])
def test_numbers_that_cannot_be(tmp_path, option, value):
    options = {"ranks": 1, "logs": tmp_path, option: value}
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        launch(launch_cases.add, (1.0,), **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
def test_nothing_is_left_of_a_stopped_launcher(tmp_path, number):
    command = [sys.executable, launch_cases.__file__, str(tmp_path)]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        if number == signal.SIGHUP:
            # As the system does it where a terminal is closed: to all processes at once.
            os.killpg(child.pid, number)
        else:
            child.send_signal(number)
        child.wait(SECONDS)
    finally:
        child.kill()
        child.wait()
    until(lambda: not any(is_alive(pid) for pid in pids(tmp_path)))
    if number != signal.SIGKILL:
        name = signal.Signals(number).name
        assert (tmp_path / "said").read_text() == f"interrupted by {name}"
        assert {path.read_text() for path in tmp_path.glob("stopped-*")} == {name}
    assert len(list(tmp_path.glob("stopped-*"))) == 2


def test_under_nohup_a_closed_terminal_is_not_heard(tmp_path):
    command = ["nohup", sys.executable, launch_cases.__file__, str(tmp_path)]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        os.killpg(child.pid, signal.SIGHUP)
        child.send_signal(signal.SIGTERM)
        child.wait(SECONDS)
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "said").read_text() == "interrupted by SIGTERM"
    assert {path.read_text() for path in tmp_path.glob("stopped-*")} == {"SIGTERM"}
