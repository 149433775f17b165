"""Pages in a real browser: they render, say nothing in the console, and fetch nothing."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from hostile_drawings import HOSTILE

from chromium import BROWSER, DARK, LIGHT, browse, cut, look
from weft.report import write_page

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


def everything(run: Path, plan: Path, study: Path, tmp_path: Path) -> Path:
    return write_page([run, plan, study], tmp_path / 'page "of" <all> & more.html')


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


LOOKS = (("light", 1200, LIGHT), ("dark", 1200, DARK), ("narrow", 480, LIGHT))


def test_it_is_drawn_in_both_themes_and_on_narrow_screens(run, plan, study, tmp_path) -> None:
    page = everything(run, plan, study, tmp_path)
    shots = {}
    for name, width, theme in LOOKS:
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


ORDER = """<script>
const shown = () => [...document.querySelectorAll(".board tbody tr")]
  .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
  .map((row) => row.querySelector("a").textContent).join(" ");
const said = [shown()];
for (const press of ["learning_rate", "begun [UTC]", "in reverse"]) {
  [...document.querySelectorAll(".board label")]
    .find((label) => label.textContent.trim() === press).click();
  said.push(shown());
}
const left = [...document.querySelectorAll(".board tr")]
  .map((row) => row.children[1].getBoundingClientRect().right);
said.push(Math.max(...left) - Math.min(...left));
document.title = said.join("|");
</script>"""


def test_a_leader_board_is_sorted_without_a_script(make_run, tmp_path) -> None:
    for name, rate, day in (("x", 2e-3, 3), ("y", 1e-3, 1), ("z", 4e-3, 2)):
        folder = make_run(tmp_path / "runs" / name, rate=rate)
        config = json.loads((folder / "config.json").read_text())
        config["sessions"][0]["started"] = f"2026-01-0{day}T00:00:00+00:00"
        (folder / "config.json").write_text(json.dumps(config))
    text = write_page([tmp_path / "runs"]).read_text(encoding="utf-8")
    assert "<script" not in text
    # The test's own script presses headings, which the page itself would not let it do.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page = tmp_path / "pressed.html"
    page.write_text(text.replace("</body>", f"{ORDER}</body>"), encoding="utf-8")
    shown = browse(tmp_path, page, "--dump-dom").stdout
    title = re.search("<title>(.*?)</title>", shown)
    assert title is not None
    *orders, apart = title[1].split("|")
    # By the main score, the learning rate, the newest first, the oldest first.
    assert orders == ["z x y", "y x z", "x z y", "y z x"]
    # Cells of a column end where its heading does.
    assert float(apart) < 1


@pytest.mark.parametrize(("width", "paper"), [(390, False), (688, True)])
def test_nothing_is_cut(make_run, plan, study, tmp_path, width, paper) -> None:
    """On a narrow screen, and between the margins of A4, whose style is taken on a screen here."""
    scores = {f"test_{name}_mae": 12345.678 for name in "abcdefghijkl"}
    for name in ("first", "second-of-them"):
        make_run(tmp_path / "runs" / name, **scores)
    rows = "|".join(["words and words", *(["1,234.567"] * 13)])
    head = "|".join([f"heading {number}" for number in range(14)])
    with (study / "results.md").open("a") as file:
        file.write(f"\n## Wide\n\n|{head}|\n|{'---|' * 14}\n|{rows}|\n")
    items = [tmp_path / "runs", tmp_path / "runs" / "first", plan, study]
    text = write_page(items, tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    if paper:
        text = text.replace("@media print", "@media all")
    assert cut(tmp_path, tmp_path, text, width, boxes="" if paper else ".scroll") == []


def test_it_is_printed(run, plan, study, tmp_path) -> None:
    page = everything(run, plan, study, tmp_path)
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) > 1
