"""Pages: single files that load nothing, with all values escaped."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.reporting.page import _environment, write_page

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EMPTY = {"meta", "img", "source", "input"}


class Reader(HTMLParser):
    """Parser that records texts and attributes, and checks that elements are closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.texts, self.attributes = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"}.intersection(self.open):
            self.texts.append(data)


ELEMENTS = """
{{ parts.figures([(text, text)]) }}
{{ parts.table([text, "b"], [[text, 1.0], [text, none]], ["b"], text) }}
{{ parts.figure(png, text, dark=png) }}
{{ parts.figure(none, text, svg=svg) }}
<p>{{ parts.marked(text, [(0, text | length)]) }}</p>
"""
SVG = '<svg viewBox="0 0 1 1"></svg>'


def page(elements, text="plain"):
    template = f'{{% extends "base.html.j2" %}}{{% import "parts.html.j2" as parts %}}{{% block body %}}{elements}'
    made = _environment().from_string(template + "{% endblock %}")
    return made.render(title=text, subtitle=text, text=text, png=PNG, svg=SVG, nan=math.nan)


def full(text="plain"):
    return page(ELEMENTS, text)


def test_a_page_is_whole_and_fetches_nothing(tmp_path):
    write_page(tmp_path / "a" / "page.html", full())
    html = (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    read = Reader(html)
    assert read.open == []
    places = [value for name, value in read.attributes if name in ("src", "srcset", "href", "action", "data")]
    assert places
    assert all(place.startswith("data:image/png;base64,") for place in places)
    assert not re.search(r"https?://|@import|url\(", html)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["page.html"]


def test_the_policy_of_a_page_allows_its_own_script_and_no_other():
    html = full()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    # These two do not fall back to default-src.
    assert "base-uri 'none'; form-action 'none'" in policy


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("<>&\"'/a =") | st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_all_values_are_escaped(text):
    read = Reader(full(text))
    assert read.seen == Reader(full()).seen
    assert read.open == []
    assert sum(text in seen for seen in read.texts) >= 12


def test_cells_are_formatted_and_svg_figures_are_not_escaped():
    html = page('{{ parts.table(["name", "value"], [["x", 0.51234], ["y", 1234], ["z", nan]], ["value"]) }}')
    assert '<td class="number" data-sort="0.51234">0.5123</td>' in html
    assert '<td class="number" data-sort="1234">1,234</td>' in html
    assert '<th scope="col" class="number">value</th>' in html
    assert '<td class="number" data-sort="nan"></td>' in html
    figure = page('{{ parts.figure(none, "A point", svg=svg) }}')
    assert f'<div role="img" aria-label="A point">{SVG}</div>' in figure
