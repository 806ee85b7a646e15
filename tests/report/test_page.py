"""Pages: one file, nothing fetched, nothing taken for HTML."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.report.page import Mark, Page

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EMPTY = {"meta", "img", "source", "input"}


class Reader(HTMLParser):
    """What a browser would see: the texts, the attributes, and whether every element that opens is closed."""

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


def full(text="plain"):
    page = Page(text, text)
    page.heading(text)
    page.text(text, Mark(text, "good", title=text))
    page.figures([(text, text)])
    page.table([text, "b"], [[text, 1.0], [Mark(text, sort=text), None], [[text, Mark(text)], 3]], caption=text)
    page.figure(PNG, text, dark=PNG, alt=text)
    folded = page.details(text, Mark(text))
    folded.text(text)
    folded.details(text).text(text)
    return page


def test_a_page_is_whole_and_fetches_nothing(tmp_path):
    page = full()
    page.write(tmp_path / "a" / "page.html")
    html = (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    read = Reader(html)
    assert read.open == []
    places = [value for name, value in read.attributes if name in ("src", "srcset", "href", "action", "data")]
    assert places
    assert all(place.startswith("data:image/png;base64,") for place in places)
    assert not re.search(r"https?://|@import|url\(", html)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["page.html"]


def test_the_policy_of_a_page_allows_its_own_script_and_no_other():
    html = full().html()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    import hashlib

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("<>&\"'/a =") | st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_whatever_is_given_is_text(text):
    """The elements of a page are the same whatever its texts are, and the texts are seen as they were given."""
    read = Reader(full(text).html())
    assert read.seen == Reader(full().html()).seen
    assert read.open == []
    assert sum(text in seen for seen in read.texts) >= 15


def test_cells_are_shown_and_ordered():
    page = Page("a")
    page.table(["name", "value"], [["x", 0.51234], ["y", 1234], ["z", float("nan")], ["w", True]], numeric=["value"])
    html = page.html()
    assert '<td class="number" data-sort="0.51234">0.5123</td>' in html
    assert '<td class="number" data-sort="1234">1,234</td>' in html
    assert '<th scope="col" class="number">value</th>' in html
    assert '<td class="number" data-sort="nan"></td>' in html


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a row has 1 cells, and the table 2 columns"):
        Page("a").table(["one", "two"], [["1"]])


def test_a_vector_figure_is_put_in_without_its_head():
    page = Page("a")
    page.figure('<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg viewBox="0 0 1 1"></svg>', "A point")
    html = page.html()
    assert '<div role="img" aria-label="A point"><svg viewBox="0 0 1 1"></svg></div>' in html
    assert html.count("<!DOCTYPE") == 1


def test_equal_pages_have_equal_bytes():
    assert full().html() == full().html()


def test_a_picture_has_the_width_it_is_given():
    """Otherwise the browser shows it dot by dot."""
    page = Page("a")
    page.figure(PNG, width=192)
    page.figure(PNG)
    assert page.html().count(' width="192"') == 1
    assert page.html().count("<img ") == 2
