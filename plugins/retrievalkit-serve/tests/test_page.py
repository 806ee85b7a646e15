"""The search page in a browser: keyboard, hostile texts, columns, addresses, small screens, themes."""

from __future__ import annotations

import json
import re
import shutil
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from retrievalkit_serve.doubts import made_up_queries
from services import TOKEN, service

import retrievalkit as rk
from retrievalkit.contracts.commands import write_manifest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUERY = "what is the capital of Peru"
NOTE = "dense: 514 of 7,492 passages have vectors; the others are not yet searched by meaning."


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=[*arguments, "--disable-sync", "--no-first-run"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, served):
    """Opens the page; the test fails if there are foreign scripts, errors or requests to other sites."""
    problems, contexts = [], []

    def open_page(path="/", address=served.address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script("window.hacks = []; window.hacked = (number) => window.hacks.push(number);")
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: problems.append(request.url) if address not in request.url else None)
        page.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
        page.goto(address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def hits_of(page, column=0):
    """Wait for the hits of a column."""
    view = page.locator(".view").nth(column)
    playwright.expect(page.locator(f".view:nth-child({column + 1})[data-done]")).to_have_count(1)
    return view.locator(".hit")


def test_a_search_by_keyboard_alone(opened, client):
    """Type, Enter, down to the second hit, Enter for its text, Escape to the search box."""
    page = opened()
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    hits = hits_of(page)
    expected = client.post("/search", json={"query": QUERY}).json()["hits"]
    assert [hit.get_attribute("data-id") for hit in hits.all()] == [hit["id"] for hit in expected]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.id") == expected[1]["id"]
    page.keyboard.press("Enter")
    playwright.expect(hits.nth(1).locator(".whole")).to_contain_text("The seat of government")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("Control+a")
    page.keyboard.type("kcwx/ j" + "x" * 300)
    assert page.input_value("#query").startswith("kcwx/ j")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".state.bad")).to_contain_text("this service accepts 200")


def test_the_start_page_shows_the_collection(opened, client):
    """Its name, indexes, and titles as example queries; the back button returns to it."""
    page = opened()
    served = client.get("/indexes").json()
    playwright.expect(page.locator("#collection")).to_have_text(served["collection"])
    rows = [row.inner_text() for row in page.locator("#indexes tr").all()]
    assert [row.split()[0] for row in rows] == ["dense", "late"]
    assert all(f"{index['vectors']:,}" in row for index, row in zip(served["indexes"], rows, strict=True))
    page.locator("#examples a").first.click()
    hits = hits_of(page)
    assert parse_qs(urlsplit(page.url).query) == {"query": [served["examples"][0]]}
    assert hits.first.locator(".title").inner_text()
    playwright.expect(page.locator("#start")).to_be_hidden()
    page.go_back()
    playwright.expect(page.locator("#start")).to_be_visible()
    assert page.input_value("#query") == ""


def test_the_legend_explains_what_the_hits_show(opened):
    """Nearest sentences for single vectors, and tokens for late interaction, but no terms."""
    page = opened(f"/?query={QUERY}&why=1")
    hits_of(page)
    playwright.expect(page.locator(".hit .why").filter(has_text="nearest sentence:").first).to_be_visible()
    page.locator("#legend summary").click()
    playwright.expect(page.locator("#legend [data-kind=sentence]")).to_be_visible()
    shown = [entry.get_attribute("data-kind") for entry in page.locator("#legend [data-kind]:not([hidden])").all()]
    assert set(shown) - {"absent"} == {"several", "sentence", "tokens"}


@pytest.fixture(scope="module")
def handbook(tmp_path_factory, tiny_model):
    """A service of PDF documents with five passages each, on pages below headings, and with fields."""
    folder = tmp_path_factory.mktemp("documents")
    places = ["Peru", "Chile", "Bolivia"]
    rows = [
        {
            "_id": f"{place}.pdf#{number}",
            "title": place,
            "text": f"Part {number} about {place}. The seat of government of part {number} is a city.",
            "metadata": {"kind": "guide" if place == "Peru" else 'the "rest"', "year": 2020 + row},
            "cut": {"document": f"{place}.pdf", "number": number, "of": 5, "page": number}
            | {"heading": f"{place} > Cities > Part {number}"},
        }
        for row, place in enumerate(places)
        for number in range(1, 6)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place in places:
        (folder / f"{place}.pdf").write_bytes(b"%PDF-1.4")
    rk.Index.build(folder / "corpus.jsonl", tiny_model, folder / "index", pooler="mean")
    record = {"options": {"root": str(folder)}, "name": "handbook", "indexes": ["index"], "notes": [NOTE]}
    write_manifest(folder, "collection", command="sync", **record)
    with service(folder) as process:
        yield process


def test_a_hit_shows_its_place_and_its_pdf_opens_there(opened, handbook):
    """The headings below the title, and the page; notes on the collection are at the start and at the results."""
    page = opened("/", address=handbook.address)
    playwright.expect(page.locator("#start")).to_contain_text(NOTE)
    page = opened(f"/?query={QUERY}", address=handbook.address)
    passage = hits_of(page).first.locator(".text").first
    playwright.expect(page.locator(".view")).to_contain_text(f"Note: {NOTE}")
    number = passage.get_attribute("data-id").rpartition("#")[2]
    assert passage.locator(".part").inner_text() == f"Cities > Part {number} · page {number}"
    passage.locator(".part").click()
    link = hits_of(page).first.get_by_role("link", name=f"Open the PDF at page {number}")
    address = urlsplit(link.get_attribute("href"))
    assert (address.path, address.fragment) == ("/file", f"page={number}")
    answer = page.request.get(f"{handbook.address}{address.path}?{address.query}")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/pdf")


def test_a_document_is_a_hit_with_its_passages(opened, handbook):
    """One passage and a button for the others; a click shows a passage highlighted in its document."""
    page = opened(f"/?query={QUERY}", address=handbook.address, viewport={"width": 900, "height": 700})
    hits = hits_of(page)
    assert hits.count() == 3
    first = hits.first
    assert [text.is_visible() for text in first.locator(".text").all()] == [True] + [False] * 4
    first.get_by_role("button", name="4 more passages").click()
    assert all(text.is_visible() for text in first.locator(".text").all())
    passage = first.locator(".text").nth(1)
    number = passage.get_attribute("data-id").rpartition("#")[2]
    passage.locator(".part").press("Enter")
    whole = first.locator(".whole")
    playwright.expect(whole.locator(".passage")).to_contain_text(f"Part {number} about")
    assert all(f"Part {part} about" in whole.inner_text() for part in range(1, 6))
    passage.locator(".part").click()
    playwright.expect(whole).to_have_count(0)


def test_a_wide_screen_shows_the_document_next_to_the_hits(opened, handbook):
    """First that of the best hit; the address has the opened passage, and opens it again."""
    page = opened(f"/?query={QUERY}", address=handbook.address, viewport={"width": 1920, "height": 900})
    hits, whole = hits_of(page), page.locator(".whole")
    playwright.expect(hits.first.locator(".whole .passage")).to_be_visible()
    assert whole.bounding_box()["x"] > hits.first.bounding_box()["x"] + hits.first.bounding_box()["width"]
    assert parse_qs(urlsplit(page.url).query).keys() == {"query"}
    hits.nth(1).get_by_role("button", name="4 more passages").click()
    passage = hits.nth(1).locator(".text").nth(2)
    identifier = passage.get_attribute("data-id")
    passage.locator(".part").click()
    playwright.expect(whole.locator(".passage")).to_contain_text(f"Part {identifier.rpartition('#')[2]} about")
    assert whole.count() == 1
    assert parse_qs(urlsplit(page.url).query)["open"] == [identifier]
    again = opened("/?" + urlsplit(page.url).query, address=handbook.address, viewport={"width": 390, "height": 800})
    hits_of(again)
    playwright.expect(again.locator(f'.whole[data-passage="{identifier}"] .passage')).to_be_visible()
    page.get_by_role("button", name="Close the document").click()
    playwright.expect(whole).to_have_count(0)
    assert "open=" not in page.url


def test_unknown_parts_of_the_address_are_reported(opened):
    page = opened(f"/?q=x&query={QUERY}&k=many&view=nope,late~sideways&why=yes&query=b")
    assert hits_of(page).count() == 10
    text = page.locator("#message").inner_text()
    for part in ("q", "k is many", "no index nope", "dense, late", "sideways", "why is yes", "query several times"):
        assert part in text
    page.goto(page.url.split("?")[0] + f"?query={QUERY}")
    playwright.expect(page.locator("#message")).to_have_text("")


def test_the_page_reports_that_nothing_matches_well(opened, client):
    """With the reasons of the answer; for a text of the collection, there are none."""
    bodies = ({"query": text, "indexes": ["dense"]} for text in made_up_queries())
    nonsense = next(body["query"] for body in bodies if client.post("/search", json=body).json()["doubt"])
    page = opened(f"/?query={quote(nonsense)}&view=dense")
    hits_of(page)
    playwright.expect(page.locator(".cue")).to_contain_text("made-up words")
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".cue")).to_be_hidden()


def test_facets_and_typed_filters_restrict_the_hits(opened, handbook):
    """Both edit one expression, which is part of the address; mistakes are reported with the known fields."""
    page = opened(f"/?query={QUERY}", address=handbook.address)
    assert hits_of(page).count() == 3
    page.locator("#narrow summary").click()
    page.get_by_label('the "rest"').check()
    playwright.expect(page.locator(".hit")).to_have_count(2)
    page.get_by_label("2021").check()
    playwright.expect(page.locator(".hit")).to_have_count(1)
    again = opened(urlsplit(page.url).path + "?" + urlsplit(page.url).query, address=handbook.address)
    assert hits_of(again).count() == 1
    again.locator("#narrow summary").click()
    assert [again.get_by_label(name).is_checked() for name in ('the "rest"', "2021", "2020", "guide")] == [
        True,
        True,
        False,
        False,
    ]
    again.get_by_label("Only texts where").fill("year < 2021 and kind = guide")
    again.get_by_label("Only texts where").press("Enter")
    playwright.expect(again.locator(".hit .id")).to_have_text("Peru.pdf")
    assert not again.get_by_label("guide").is_checked()
    again.get_by_label("Only texts where").fill("yaer = 2021")
    again.get_by_label("Only texts where").press("Enter")
    playwright.expect(again.locator(".state.bad")).to_contain_text("year")
    again.get_by_role("button", name="All texts").click()
    playwright.expect(again.locator(".hit")).to_have_count(3)


def test_the_page_reports_a_stopped_service(opened, folders):
    with service(folders / "dense") as process:
        page = opened(f"/?query={QUERY}", address=process.address)
        hits_of(page)
        process.stop()
        page.keyboard.press("Enter")
        playwright.expect(page.locator(".state.bad")).to_contain_text("does not answer")


def test_a_hit_shows_reasons_and_the_scores_of_each_index(opened, client):
    """After `w`; without it, a hit has no numbers but its rank."""
    page = opened(f"/?query={QUERY}")
    playwright.expect(hits_of(page).first.locator(".found, .score").locator("visible=true")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("w")
    assert "why=1" in page.url
    first = hits_of(page).first
    hit = client.post("/search", json={"query": QUERY, "explain": True}).json()["hits"][0]
    # Reasons follow the hits, in a second request.
    playwright.expect(first.locator(".found")).to_contain_text(hit["found"][1]["tokens"][0]["query"])
    text = first.locator(".found").inner_text()
    for part in hit["found"]:
        assert part["index"] in text
        assert f"place {part['rank']}" in text
    marks = [mark.inner_text() for mark in first.locator(".snippet mark").all()]
    assert marks == hit["matches"]
    first.focus()
    page.keyboard.press("w")
    playwright.expect(first.locator(".found")).to_be_hidden()
    assert "why=1" not in page.url


def test_scripts_in_texts_are_shown_but_not_run(opened):
    """In titles, ids, snippets, documents and the query."""
    page = opened("/?query=%3Cimg%20src%3Dx%20onerror%3Dhacked(9)%3E%20capital%20bold%20evil%20peru&k=50")
    hits = hits_of(page)
    hostile = hits.filter(has_text="</script>")
    playwright.expect(hostile).to_have_count(1)
    assert hostile.locator(".title").inner_text() == "</script><script>hacked(2)</script>"
    assert hostile.locator(".id").inner_text() == "<img src=x onerror=hacked(1)>"
    assert "\ufffdevil {{7*7}}" in hostile.locator(".snippet").inner_text()
    # Positions count characters; in JavaScript, an emoji has a length of two.
    assert "Peru" in [mark.inner_text() for mark in hostile.locator(".snippet mark").all()]
    hostile.click()
    playwright.expect(hostile.locator(".whole")).to_contain_text("onerror=hacked(3)")
    assert page.locator("img, .hit script, .hit b b").count() == 0
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacks") == []


def test_columns_are_part_of_the_address(opened):
    """With their indexes and fusion; each hit shows its rank in the other columns; the back button restores columns."""
    page = opened(f"/?query={QUERY}")
    hits_of(page)
    page.click("#add")
    page.click("#add")
    assert [hits_of(page, column).count() for column in range(3)] == [10, 10, 10]
    second = page.locator(".view").nth(1)
    assert [box.is_checked() for box in second.locator(".chip input").all()] == [True, False]
    second.locator(".chip input").nth(1).check()
    second.locator("select").select_option("min_max")
    playwright.expect(second.locator(".state")).to_contain_text("scaled score")
    playwright.expect(second.locator(".hit").first.locator(".elsewhere")).to_contain_text("in column 1")
    state = parse_qs(urlsplit(page.url).query)
    assert state["view"] == ["dense,late", "dense,late~min_max", "late"]
    first = [hit.get_attribute("data-id") for hit in hits_of(page, 1).all()]
    again = opened(page.url[len(page.url.split("/?")[0]) :])
    assert [hit.get_attribute("data-id") for hit in hits_of(again, 1).all()] == first
    page.locator(".view").nth(0).locator(".hit").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.closest('.view') === document.querySelectorAll('.view')[1]")
    page.keyboard.press("x")
    playwright.expect(page.locator(".view")).to_have_count(2)
    page.go_back()
    playwright.expect(page.locator(".view")).to_have_count(3)


def test_re_ranking_can_be_switched_on(opened):
    page = opened(f"/?query={QUERY}&why=1")
    hits_of(page)
    page.get_by_label("re-rank").check()
    playwright.expect(page.locator(".state")).to_contain_text("re-ranked by reranker")
    playwright.expect(page.locator(".hit").first.locator(".found")).to_contain_text("before re-ranking: place ")
    assert parse_qs(urlsplit(page.url).query)["view"] == ["dense,late~read"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_small_screen_and_follows_the_colour_scheme(opened, scheme):
    """Nothing is wider than the screen; the colours follow the browser's setting."""
    page = opened(f"/?query={QUERY}", viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    hits_of(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour)[:3])) > 600) == (scheme == "light")
    page.click("#add")
    hits_of(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_page_prompts_for_the_token(opened, folders):
    with service(folders / "dense", env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        page = opened(f"/?query={QUERY}", address=process.address)
        page.get_by_label("Token").last.fill(TOKEN)
        page.keyboard.press("Enter")
        assert hits_of(page).count() == 10
