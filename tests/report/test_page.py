"""The page itself: escaping, soundness, the same page for the same content."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from sound_pages import assert_is_sound

from weft.errors import DataError
from weft.report import Chapter, Page, Part, Table, render, write_html
from weft.report.figures import bars, curves, spy_plot
from weft.report.page import Code, Facts, Figure, Words

NASTY = "<script>alert('&\"')</script>"


def chapter(title: str, *figures: Figure | None) -> Chapter:
    table = Table(caption=NASTY, headings=(NASTY, "n"), rows=[(NASTY, "1"), ("b", "2")])
    return Chapter(
        kind="Run",
        title=title,
        lead=NASTY,
        parts=[
            Part(
                title=NASTY,
                blocks=[
                    Facts(facts=[(NASTY, NASTY, NASTY)]),
                    Words(words=[NASTY, NASTY], points=True),
                    Code(caption=NASTY, text=NASTY),
                    table,
                    *(figure for figure in figures if figure is not None),
                ],
            )
        ],
    )


def test_what_a_user_wrote_is_text_everywhere() -> None:
    line = curves(NASTY, {NASTY: [(1, 2), (2, 4)], "&b": [(1, 3)]}, x=NASTY, y=NASTY)
    times = [(NASTY, 1.0, 0.5, 2.0), ("&", 2.0, 2.0, 2.0)]
    shown = bars(NASTY, times, x=NASTY, of=NASTY, marked=[0], note=NASTY)
    text = render(Page(title="", chapters=[chapter(NASTY, line, shown)]))
    page = assert_is_sound(text)
    assert page.words.count(NASTY) > 20


def test_a_name_that_looks_like_an_attribute_is_drawn() -> None:
    figure = curves(
        "x on y=1 src='a'", {"a onb=2": [(1, 2), (2, 4)]}, x="javascript: url(b)", y="l"
    )
    assert_is_sound(render(Page(title="", chapters=[chapter("one", figure)])))
    assert figure is not None
    assert "javascript: url(b)</text>" in figure.svg


def test_several_chapters_have_headings_in_order_and_names_of_their_own() -> None:
    figure = curves("Loss", {"a": [(1, 2), (2, 4)]}, x="step", y="loss")
    other = curves("Loss", {"a": [(1, 2), (2, 5)]}, x="step", y="loss")
    page = Page(title="Two", chapters=[chapter("one", figure), chapter("two", other)])
    assert_is_sound(render(page))
    assert render(page) == render(page)


def test_figures_have_their_numbers_in_a_table() -> None:
    figure = curves("Loss", {"a": [(1, 0.5), (2, 0.25)], "b": [(2, 8.0)]}, x="step", y="loss")
    assert figure is not None
    assert figure.table.rows == [("1", "0.5", "–"), ("2", "0.25", "8")]
    assert figure.table.numeric == [True, True, True]
    # Text is text, in the page's own colours, and there is no date.
    assert ">loss</text>" in figure.svg
    assert "currentColor" in figure.svg
    assert "var(--c2)" in figure.svg
    assert "#0a0b" not in figure.svg
    assert "#010203" not in figure.svg
    assert "<metadata" not in figure.svg
    assert "<style" not in figure.svg


def test_text_of_plots_is_at_least_ten_pixels_high_on_a_narrow_screen() -> None:
    names = [f"a run with rather a long name, number {number}" for number in range(5)]
    drawn = [
        curves("Loss", {name: [(1, 0.5), (2, 0.25)] for name in names}, x="step", y="loss"),
        bars("Time", [(name, 1.0, 0.5, 2.0) for name in names], x="time [s]", of="run"),
        spy_plot("Edges", np.eye(8, dtype=int), Table(caption="", headings=(), rows=[]), ""),
    ]
    for figure in drawn:
        assert figure is not None
        box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', figure.svg)
        assert box is not None
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", figure.svg)]
        # 390 pixels less the page's margins.
        assert min(sizes) * 358 / float(box[1]) >= 10


def test_a_table_can_be_turned_and_lose_what_is_empty() -> None:
    rows = [("a", "1", "–", ""), ("b", "2", "–", "x")]
    table = Table(caption="", headings=("name", "n", "m", "said"), rows=rows, chips=(3,))
    kept = table.without_empty()
    assert kept.headings == ("name", "n", "said")
    assert kept.chips == (2,)
    turned = kept.turned("what")
    assert turned.headings == ("what", "a", "b")
    assert turned.rows == [("n", "1", "2"), ("said", "", "x")]


def test_which_columns_are_numbers() -> None:
    columns = {
        True: [("1", "2.5"), ("–", "1,200 s"), ("60.4% (78.1)", ""), ("4.4e-16", "-3"), ("+1", "")],
        False: [("1d", "1.5d(c=2)"), ("–", "–"), ("2026-11-16T00:00", ""), ("1", "real")],
    }
    for numeric, cells in columns.items():
        for cell in cells:
            rows = [("a", text) for text in cell]
            table = Table(caption="", headings=("name", "value"), rows=rows)
            assert table.numeric == [False, numeric], cell


def test_a_long_curve_is_drawn_as_means_and_the_table_has_those() -> None:
    points = [(float(x), float(x % 2)) for x in range(1, 1201)]
    figure = curves("Loss", {"a": points}, x="step", y="loss")
    assert figure is not None
    assert len(figure.table.rows) == 120
    assert {row[1] for row in figure.table.rows} == {"0.5"}
    assert figure.table.rows[-1][0] == "1,200"


def test_bars_below_zero_are_in_the_picture() -> None:
    rows = [("a", -0.5, -0.75, -0.25), ("b", 1.0, 1.0, 1.0), ("c", -2.0, -2.0, -2.0)]
    for shown in (rows, rows[:1]):
        svg = bars("scores", shown, x="R²", of="run").svg
        view = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        assert view is not None
        # The fourth corner of a bar is the first again.
        drawn = re.findall(r'd="M ([\d.-]+) [\d.-]+\s+L ([\d.-]+) ', svg)
        ends = [float(x) for pair in drawn for x in pair]
        assert ends
        assert 0 <= min(ends) <= max(ends) <= float(view[1])


def test_nothing_to_draw_gives_no_figure() -> None:
    assert curves("Loss", {"a": [], "b": [(1, float("nan"))]}, x="step", y="loss") is None


def test_a_matrix_is_drawn_in_shades() -> None:
    counts = np.zeros((96, 96), dtype=int)
    counts[3, 4:9], counts[50, 50] = 1, 100
    table = Table(caption="near", headings=("nodes", "share"), rows=[("8", "90%")])
    figure = spy_plot("Edges", counts, table, "")
    assert_is_sound(render(Page(title="", chapters=[chapter("spy", figure)])))
    assert figure.svg.count("var(--c1)") == 2


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    page = Page(title="", chapters=[chapter("one")])
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DataError, match=r"jinja2.*pip install 'weft\[report\]'"):
        write_html(page, tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"matplotlib.*pip install 'weft\[report\]'"):
        curves("Loss", {"a": [(1, 2)]}, x="step", y="loss")
    assert list(tmp_path.iterdir()) == []
