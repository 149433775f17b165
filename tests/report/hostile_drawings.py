"""Drawings that would run or fetch something, or break a page, if they were part of its markup."""

from __future__ import annotations

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'xmlns:h="http://www.w3.org/1999/xhtml" viewBox="0 0 1 1">'
)
_RUNNING = (
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
)
_DECLARING = (
    '<!DOCTYPE svg [<!ENTITY a "<script>1</script>">]>',
    '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
    '<!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    '<!DOCTYPE svg SYSTEM "http://example.org/a.dtd" [<!ATTLIST rect onclick CDATA "x()">]>',
    '<!DOCTYPE svg SYSTEM "http://example.org/a.dtd">',
)
_BROKEN = (
    '</svg><meta http-equiv="refresh" content="0; example.org"><svg>',
    "<style>* { color: red }",
    '<rect o:nclick="x()"/>',
    "<text>&nbsp;</text>",
    "</svg><script>1</script>",
    "<g>" * 100_000 + "</g>" * 100_000,
)
HOSTILE = (
    *(f"{SVG}{inside}</svg>" for inside in (*_RUNNING, *_BROKEN)),
    *(f"{before}{SVG}<text>&a;</text></svg>" for before in _DECLARING),
)
