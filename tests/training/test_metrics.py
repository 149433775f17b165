from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import DataError
from weft.training import MetricsLog, read_metrics


def write(log: MetricsLog, *steps: int) -> None:
    for step in steps:
        log.log(step=step, epoch=1, seconds=0.5, values={"loss": 1 / step})


@given(values=st.lists(st.floats(), min_size=1, max_size=20))
def test_floats_round_trip_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    path = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    log = MetricsLog(path)
    for step, value in enumerate(values, start=1):
        log.log(step=step, epoch=1, seconds=0.0, values={"value": value})
    log.close()
    for before, line in zip(values, read_metrics(path), strict=True):
        after = line["value"]
        if not math.isfinite(before):
            assert after is None
        else:
            assert after == before
            assert math.copysign(1, after) == math.copysign(1, before)


def test_resume_cuts_what_is_to_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    write(log, 1, 2, 3, 4)
    log.close()
    with path.open("a") as file:
        file.write('{"step": 5, "lo')
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]
    log = MetricsLog(path)
    log.keep(2, 2)
    assert log.lines == 2
    write(log, 3)
    log.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2 is not JSON"):
        read_metrics(path)
    with pytest.raises(DataError, match=r"other/metrics\.jsonl does not exist"):
        read_metrics(tmp_path / "other" / "metrics.jsonl")


def test_tensorboard_has_the_same_values(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    write(log, 1, 2, 3)
    log.sync()
    # TensorBoard reads files in the order of their names, which hold the second they were made.
    time.sleep(1.1)
    log.keep(2, 2)
    write(log, 3, 4)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)), (4, 0.25)]


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_full_disk_takes_one_sentence(
    small_disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str], tensorboard: bool
) -> None:
    disk = small_disk(64)
    hook = threading.excepthook
    log = MetricsLog(disk / "metrics.jsonl", disk / "tensorboard" if tensorboard else None)
    with pytest.raises(DataError) as caught:
        write(log, *range(1, 100_000))
    log.close()
    said = str(caught.value)
    assert re.fullmatch(
        r"cannot write \S+/disk/(metrics\.jsonl|tensorboard): No space left on device; make room, "
        r"then resume with --resume",
        said,
    )
    assert "".join(capfd.readouterr()) == ""
    assert threading.excepthook is hook
    # Lines that were logged are whole.
    assert len(read_metrics(disk / "metrics.jsonl")) >= log.lines


@pytest.mark.parametrize("line", ["1" + "0" * 400, '{"a": 1' + "0" * 400 + "}", "[" * 9999, "[1]"])
def test_a_line_of_something_else_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2(?: is not JSON|: not an object)"):
        read_metrics(path)
