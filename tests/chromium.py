"""Looks at pages in Chromium: what it shows, what the console says, what does not fit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LIGHT, DARK = 1, 0
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
    # Whatever the browser itself would like to look up.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def browse(
    tmp_path: Path, page: Path, *options: str, query: str = ""
) -> subprocess.CompletedProcess[str]:
    """Open the page once; `tmp_path` gets the browser's files."""
    assert BROWSER is not None
    profile = tmp_path / f"profile-{len(list(tmp_path.glob('profile-*')))}"
    done = subprocess.run(
        [BROWSER, *QUIET, f"--user-data-dir={profile}", *options, page.as_uri() + query],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def look(tmp_path: Path, page: Path) -> tuple[str, list[str], set[str]]:
    """The page as the browser has it, what its console says, and what it asked for."""
    log = tmp_path / "net.json"
    done = browse(tmp_path, page, "--dump-dom", "--enable-logging=stderr", f"--log-net-log={log}")
    whole = json.loads(log.read_text(encoding="utf-8"))
    begun = whole["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = {
        event["params"]["url"]
        for event in whole["events"]
        if event["type"] == begun
        # What a browser wants for itself, such as updates, comes from no page.
        and event.get("params", {}).get("initiator", "not an origin") != "not an origin"
    }
    return done.stdout, console(done), asked


def console(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the pages of a browser with `--enable-logging=stderr` have said."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


_CUT = """<script>
addEventListener("load", () => {
  const edge = document.documentElement.clientWidth + 1;
  const out = [...document.querySelectorAll("p, li, pre, dd, th, td, table, svg, img, .scroll")]
    .filter((each) => each.getClientRects().length)
    .filter((each) => each.getBoundingClientRect().right > edge)
    .filter((each) => !each.closest(".unseen"))
    // What is in a box that scrolls can be reached.
    .filter((each) => !("BOXES" && each.parentElement.closest("BOXES")));
  const said = [document.documentElement.clientWidth, ...out.map((e) => e.outerHTML)];
  if (document.documentElement.scrollWidth > edge) said.push("the page itself scrolls");
  parent.postMessage(said.join(" "), "*");
});
</script>"""
# A window has a least width, a frame has none.
_FRAME = """<!DOCTYPE html><script>
onmessage = (event) => { document.title = event.data; };
</script><iframe src="measured.html" style="border: 0" width="WIDTH" height="900"></iframe>"""


def cut(tmp_path: Path, place: Path, text: str, width: int, *, boxes: str) -> list[str]:
    """The elements of a page that are beyond its right edge.

    Args:
        tmp_path: gets the browser's files.
        place: the folder from which the page links to others; files are written there.
        text: of the page.
        width: of the screen, pixels.
        boxes: selector of what scrolls by itself.
    """
    script = _CUT.replace("BOXES", boxes)
    (place / "measured.html").write_text(text.replace("</body>", f"{script}</body>"), "utf-8")
    frame = place / "frame.html"
    frame.write_text(_FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    options = ("--dump-dom", "--window-size=1400,900", "--virtual-time-budget=5000")
    shown = browse(tmp_path, frame, *options).stdout
    title = re.search("<title>(.*?)</title>", shown, re.DOTALL)
    assert title is not None
    seen, *found = title[1].split(" ", 1)
    assert width - 20 <= int(seen) <= width
    return found
