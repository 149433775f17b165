"""Pages in a real browser: they render, say nothing in the console, and fetch nothing."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hostile_drawings import HOSTILE

from weft.report import write_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")

QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
    # Whatever the browser itself would like to look up.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def browse(tmp_path: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    profile = tmp_path / f"profile-{len(list(tmp_path.glob('profile-*')))}"
    done = subprocess.run(
        [BROWSER, *QUIET, f"--user-data-dir={profile}", *options, page.as_uri()],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def everything(run: Path, plan: Path, study: Path, tmp_path: Path) -> Path:
    return write_page([run, plan, study], tmp_path / 'page "of" <all> & more.html')


def look(tmp_path: Path, page: Path) -> tuple[str, list[str], set[str]]:
    """The page as the browser has it, what its console says, and what it asked for."""
    log = tmp_path / "net.json"
    done = browse(tmp_path, page, "--dump-dom", "--enable-logging=stderr", f"--log-net-log={log}")
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    whole = json.loads(log.read_text(encoding="utf-8"))
    begun = whole["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = {
        event["params"]["url"]
        for event in whole["events"]
        if event["type"] == begun
        # What a browser wants for itself, such as updates, comes from no page.
        and event.get("params", {}).get("initiator", "not an origin") != "not an origin"
    }
    return done.stdout, said, asked


def test_it_renders_quietly_and_asks_for_nothing(run, plan, study, tmp_path) -> None:
    page = everything(run, plan, study, tmp_path)
    shown, said, asked = look(tmp_path, page)
    assert "test MAE" in shown
    assert shown.count("<svg") == page.read_text(encoding="utf-8").count("<svg") == 6
    assert said == []
    assert {url for url in asked if not url.startswith(("file:", "data:"))} == set()


def test_a_studys_drawings_run_and_fetch_nothing(study, tmp_path) -> None:
    for number, drawing in enumerate(HOSTILE):
        loud = drawing.replace("x()", "console.error(1)").replace("example.org", "127.0.0.1:9")
        (study / f"hostile_{number:02}.svg").write_text(loud)
    shown, said, asked = look(tmp_path, write_page([study], tmp_path / "page.html"))
    assert shown.count("<img") == len(HOSTILE) + 2
    assert said == []
    assert {url for url in asked if not url.startswith(("file:", "data:"))} == set()


def test_a_page_that_does_would_be_found_out(tmp_path) -> None:
    page = tmp_path / "other.html"
    page.write_text(
        '<!DOCTYPE html><img src="http://127.0.0.1:9/a.png"><script>console.error(1)</script>'
    )
    _, said, asked = look(tmp_path, page)
    assert any("console.error" in line or '"1"' in line for line in said), said
    assert asked == {"http://127.0.0.1:9/a.png"}


def test_it_is_drawn_in_both_themes_and_on_narrow_screens(run, plan, study, tmp_path) -> None:
    page = everything(run, plan, study, tmp_path)
    shots = {}
    for name, width, theme in (("light", 1200, 1), ("dark", 1200, 0), ("narrow", 480, 1)):
        shot = tmp_path / f"{name}.png"
        browse(
            tmp_path,
            page,
            f"--window-size={width},900",
            f"--blink-settings=preferredColorScheme={theme}",
            f"--screenshot={shot}",
        )
        data = shot.read_bytes()
        assert struct.unpack(">II", data[16:24]) == (width, 900)
        shots[name] = data
    assert shots["light"] != shots["dark"]


def test_it_is_printed(run, plan, study, tmp_path) -> None:
    page = everything(run, plan, study, tmp_path)
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) > 1
