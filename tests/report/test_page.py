"""The page itself: escaping, soundness, the same page for the same content."""

from __future__ import annotations

import io
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from sound_pages import assert_is_sound

from weft.errors import DataError
from weft.report import Chapter, Page, Part, Table, render, write_html
from weft.report.figures import curves, grouped_bars, intervals, spy_plots
from weft.report.page import Code, Facts, Figure, Words
from weft.report.svg import inlined

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
    bars = intervals(NASTY, [(NASTY, 1.0, 0.5, 2.0), ("&", 2.0, 2.0, 2.0)], x=NASTY, marked=0)
    groups = grouped_bars(NASTY, [NASTY, "b"], {NASTY: [1, 2]}, y=NASTY, note=NASTY)
    text = render(Page(title="", chapters=[chapter(NASTY, line, bars, groups)]))
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
    assert figure.table is not None
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
    assert figure.table is not None
    assert len(figure.table.rows) == 120
    assert {row[1] for row in figure.table.rows} == {"0.5"}
    assert figure.table.rows[-1][0] == "1,200"


def test_nothing_to_draw_gives_no_figure() -> None:
    assert curves("Loss", {"a": [], "b": [(1, float("nan"))]}, x="step", y="loss") is None


def test_a_matrix_is_drawn_in_shades() -> None:
    counts = np.zeros((96, 96), dtype=int)
    counts[3, 4:9], counts[50, 50] = 1, 100
    table = Table(caption="near", headings=("nodes", "share"), rows=[("8", "90%")])
    figure = spy_plots("Edges", {"before": counts, "after": counts.T}, table, "")
    assert_is_sound(render(Page(title="", chapters=[chapter("spy", figure)])))
    assert figure.svg.count("var(--c1)") == 4


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'xmlns:h="http://www.w3.org/1999/xhtml" viewBox="0 0 1 1">'
)


@pytest.mark.parametrize(
    "inside",
    [
        "<script>1</script>",
        "<SCRIPT>1</SCRIPT>",
        "<h:script>1</h:script>",
        '<script xmlns="http://www.w3.org/1999/xhtml">1</script>',
        '<image xlink:href="http://example.org/a.png"/>',
        '<image href="x" onerror="alert(1)"/>',
        '<image href="data:image/svg+xml;base64,PHN2Zz4="/>',
        '<image href="data:image/png;base64,AA&quot; onload=&quot;x()"/>',
        '<rect onclick="x()"/>',
        '<rect\nonclick = "x()"/>',
        '<g onmouseover="x()"><rect/></g>',
        '<a href="javascript:x()"/>',
        '<a xlink:href="&#106;avascript:x()"><rect/></a>',
        '<use href="java&#115;cript:x()"/>',
        '<use xlink:href="http://example.org/a.svg#b"/>',
        '<link rel="stylesheet" href="http://example.org/a.css"/>',
        '<h:link rel="stylesheet" href="http://example.org/a.css"/>',
        '<object data="http://example.org/a"/>',
        "<h:object/>",
        "<h:iframe src='http://example.org'/>",
        "<style>@import 'x'</style>",
        "<style>rect { fill: url(http://example.org/a) }</style>",
        "<style><![CDATA[@import 'x']]></style>",
        '<rect style="fill: url(http://example.org/#a)"/>',
        '<rect style="fill: u\\72l(http://example.org/#a)"/>',
        '<rect style="width: expression(x())"/>',
        '<rect style="fill: image-set(&quot;a&quot; 1x)"/>',
        '<rect style="position: fixed; fill: red"/>',
        '<rect fill="url(//example.org/#a)"/>',
        '<rect filter="URL( &quot;http://example.org/#a&quot; )"/>',
        '<animate attributeName="href" to="javascript:x()"/>',
        '<set attributeName="onclick" to="x()"/>',
        "<foreignObject/>",
        "<svg><script>1</script></svg>",
        '<g id="a"><use href="#a"/></g>',
        '<g id="a"><use href="#b"/></g><g id="b"><use href="#c"/></g><use href="#a"/>',
    ],
)
def test_drawings_that_run_or_fetch_something_are_refused(inside: str) -> None:
    with pytest.raises(DataError, match="runs or fetches"):
        inlined(f"{SVG}{inside}</svg>", title="t", description="d")


@pytest.mark.parametrize(
    "before",
    [
        '<!DOCTYPE svg [<!ENTITY a "<script>1</script>">]>',
        '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE svg SYSTEM "http://example.org/a.dtd" [<!ATTLIST rect onclick CDATA "x()">]>',
        '<!DOCTYPE svg SYSTEM "http://example.org/a.dtd">',
    ],
)
def test_drawings_with_entities_are_refused(before: str) -> None:
    with pytest.raises(DataError, match="runs or fetches"):
        inlined(f"{before}{SVG}<text>&a;</text></svg>", title="t", description="d")


@pytest.mark.parametrize(
    "inside",
    [
        '</svg><meta http-equiv="refresh" content="0; example.org"><svg>',
        "<style>* { color: red }",
        '<rect o:nclick="x()"/>',
        "<text>&nbsp;</text>",
        "</svg><script>1</script>",
        "<g>" * 100_000 + "</g>" * 100_000,
    ],
)
def test_drawings_that_are_not_whole_are_refused(inside: str) -> None:
    with pytest.raises(DataError, match=r"no drawing|deep"):
        inlined(f"{SVG}{inside}</svg>", title="t", description="d")


def test_what_draws_nothing_is_left_out_and_words_are_words() -> None:
    inside = (
        "<?xml-stylesheet href='x'?><!-- <script> --><metadata><h:script>1</h:script></metadata>"
        "<style>* { stroke-linejoin: round }</style><title><h:b>t</h:b></title>"
        "<text class='c' h:onclick='x()' y='1'><![CDATA[<script>\" id=\"b\" &amp;]]></text>"
    )
    drawing = inlined(f"{SVG}{inside}</svg>", title="t", description="d")
    assert drawing.partition("</desc>")[2].strip() == (
        '<text y="1">&lt;script&gt;&quot; id=&quot;b&quot; &amp;amp;</text></svg>'
    )


@pytest.mark.parametrize("kind", ["none", "path"])
def test_what_matplotlib_draws_comes_through(kind: str) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    with mpl.rc_context({"svg.fonttype": kind, "svg.hashsalt": "a"}):
        figure = Drawing()
        first, second, third, fourth = figure.subplots(2, 2).ravel()
        first.plot([1, 2, 3], [3, 1, 2], "o--", label="a < b & 'c' \"d\" $x^2$")
        first.legend()
        first.annotate("here", (2, 1), (2.5, 2), arrowprops={"arrowstyle": "->"})
        second.imshow(np.arange(6.0).reshape(2, 3))
        third.bar(["x", "y"], [1, 2], hatch="//", yerr=[0.1, 0.2])
        third.fill_between([0, 1], [0, 1], alpha=0.5)
        fourth.scatter([1, 2], [1, 2], c=[0.1, 0.9], s=[10, 90])
        fourth.tripcolor([0, 1, 0], [0, 0, 1], [0.0, 0.5, 1.0], shading="gouraud")
        file = io.StringIO()
        figure.savefig(file, format="svg")
    text = file.getvalue()
    drawing = inlined(text, title="t", description="d")
    given, kept = ElementTree.fromstring(text), ElementTree.fromstring(drawing)
    for tree in (given, kept):
        for parent in list(tree.iter()):
            for child in list(parent):
                if child.tag.rpartition("}")[2] in ("metadata", "style", "title", "desc"):
                    parent.remove(child)
    pairs = list(zip(given.iter(), kept.iter(), strict=True))[1:]
    assert {element.tag.rpartition("}")[2] for element, _ in pairs} >= {
        *("path", "use", "clipPath", "image", "pattern", "linearGradient", "filter"),
    }
    # Names and colours become the page's own; nothing else changes.
    for before, after in pairs:
        assert before.tag == after.tag
        assert (before.text or "").strip() == (after.text or "").strip()
        assert before.attrib.keys() - {"id"} == after.attrib.keys() - {"id"}
        for name in ("d", "x", "y", "width", "height", "transform", "points"):
            assert re.sub(r"\s+", " ", before.get(name, "")) == re.sub(
                r"\s+", " ", after.get(name, "")
            )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg viewBox='0 0 1 1'>",
        "<svg><rect/></svg>",
        SVG.replace("viewBox", "id") + "</svg>",
    ],
)
def test_what_is_no_drawing_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="no drawing"):
        inlined(text, title="t", description="d")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    page = Page(title="", chapters=[chapter("one")])
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DataError, match=r"jinja2.*pip install 'weft\[report\]'"):
        write_html(page, tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"matplotlib.*pip install 'weft\[report\]'"):
        curves("Loss", {"a": [(1, 2)]}, x="step", y="loss")
    assert list(tmp_path.iterdir()) == []
