"""Pages of pictures in a browser: what the mouse and the keyboard do. scripts/setup_browser installs what this needs."""

import pytest
import torch
from browser import needs_browser, new_page, started_browser
from torch import nn

import shardwise as sw
from shardwise import Layout, Partial, Replicate, Shard

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that opens a picture's page. Afterwards nothing must have gone wrong on any, nor been asked of a network."""
    complaints, pages = [], []

    def opened(picture, **settings):
        file = picture.save(tmp_path / f"page{len(pages)}.html")
        pages.append(new_page(browser, complaints, ("file:", "data:"), **settings))
        pages[-1].goto(file.as_uri())
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
    assert complaints == []


def words(page, selector):
    return page.locator(selector).first.inner_text()


def lit_ranks(page, selector=".sw-cell.lit"):
    return page.locator(selector).evaluate_all("cells => cells.map(cell => cell.dataset.ranks)")


def test_the_mouse_tells_what_it_is_over_and_shows_the_rank_everywhere(open_page):
    page = open_page(sw.debug.picture(Layout((10, 7), (2, 2), [Shard(0), Shard(1)])))
    assert page.locator("#tip").is_hidden()
    page.locator("figure").first.locator(".sw-cell[data-ranks='3']").hover()
    told = words(page, "#tip").split()
    assert told == [
        "rank",
        "3",
        "offsets",
        "[5,",
        "4]",
        "shape",
        "[5,",
        "3]",
        "bytes",
        "60",
        "share",
        "21.4%",
        "of",
        "the",
        "tensor",
    ]
    assert lit_ranks(page) == ["3", "3"]  # its piece, and its place in the mesh
    assert page.locator("tr.lit td").first.inner_text() == "3"
    page.mouse.move(1150, 880)
    assert page.locator("#tip").is_hidden() and not page.locator(".has-lit").count()


def test_a_click_keeps_a_rank_lit_until_escape(open_page):
    page = open_page(sw.debug.picture(Layout((4, 4, 4), (4,), [Shard(0)])))
    page.locator("figure").nth(1).locator(".sw-cell[data-ranks='2']").click()
    page.mouse.move(1150, 880)
    assert page.locator("#rank").input_value() == "2" and page.locator(".has-lit").count() == 1
    assert lit_ranks(page) == ["2"]  # the slice that is shown is of rank 0
    for _ in range(2):
        page.locator("button.after").click()
    page.mouse.move(1150, 880)
    assert lit_ranks(page) == ["2", "2"]
    page.keyboard.press("Escape")
    assert page.locator(".has-lit").count() == 0
    page.locator("#rank").fill("1")
    assert lit_ranks(page) == ["1"]


def test_slices_are_stepped_through(open_page):
    page = open_page(sw.debug.picture(Layout((5, 4, 6), (3,), [Shard(0)])))
    heading = page.locator(".stepper output")
    before, after = page.locator("button.before"), page.locator("button.after")
    assert heading.inner_text().split() == ["[0:2]", "1", "of", "3"] and before.is_disabled()
    after.click()
    assert heading.inner_text().split()[0] == "[2:4]"
    page.locator(".stepper input").press("ArrowRight")
    assert heading.inner_text().split()[0] == "[4]" and after.is_disabled()
    page.locator("figure").first.locator(".sw-cell").hover()
    assert "offsets [4, 0, 0]" in " ".join(words(page, "#tip").split())
    before.click()
    assert heading.inner_text().split()[0] == "[2:4]"


def test_zoom_and_theme(open_page):
    page = open_page(sw.debug.picture(Layout((8, 16), (2, 2), [Shard(0), Partial()])))
    drawing = page.locator("svg").first
    width = drawing.bounding_box()["width"]
    page.locator("#zoom-in").click()
    assert drawing.bounding_box()["width"] == pytest.approx(1.25 * width, abs=1)
    page.locator("#zoom-reset").click()
    assert drawing.bounding_box()["width"] == pytest.approx(width, abs=1)

    def colors():
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.sw-faint')).fill]"
        )

    light = colors()
    page.locator("#theme").click()
    dark = colors()
    assert light[0] == "rgb(255, 255, 255)" and dark[0] == "rgb(13, 17, 23)" and light[1] != dark[1]
    page.locator("#theme").click()
    assert colors() == light
    preferring_dark = open_page(sw.debug.picture(Layout((2,), (2,), [Shard(0)])), color_scheme="dark")
    assert preferring_dark.evaluate("getComputedStyle(document.body).backgroundColor") == dark[0]


def test_a_partial_cell_tells_its_terms(open_page):
    page = open_page(sw.debug.picture(Layout((8, 16), (2, 3), [Shard(0), Partial()])))
    page.locator("figure").first.locator(".sw-cell").nth(1).hover()
    told = " ".join(words(page, "#tip").split())
    assert "ranks 3-5" in told and "partial sum of 3 terms term 1 rank 3 term 2 rank 4 term 3 rank 5" in told


def test_a_move_tells_its_links(open_page):
    source = Layout((8, 16), (4,), [Shard(0, [1, 3, 1, 3])])
    page = open_page(sw.debug.diff(source, [Shard(1)]))
    assert page.locator(".sw-link").count() == 12
    page.locator(".sw-link[data-from='1'][data-to='0']").hover()
    assert words(page, "#tip").split() == ["from", "rank", "1", "to", "rank", "0", "bytes", "48"]


def test_a_line_of_a_module_opens_the_picture_of_its_tensor(open_page):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = nn.Linear(4, 6)
        sw.distribute_module(model, mesh, lambda name, module, mesh: None)
        model.weight = nn.Parameter(sw.distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0, [1, 5])]))
        return sw.debug.picture(model)

    page = open_page(sw.testing.run_ranks(2, body)[0])
    row = page.locator("tr.opens").first
    assert "weight" in row.inner_text() and "1.67" in row.inner_text()
    row.click()
    assert page.locator("tr.detail figcaption").first.inner_text().startswith("[6, 4] as [Shard(0, sizes=[1, 5])]")
    page.locator("tr.detail .sw-cell").nth(1).hover()
    assert "[1, 0]" in words(page, "#tip")
    row.press("Enter")
    assert page.locator("tr.detail").first.is_hidden()


def test_names_of_a_program_are_text_and_no_markup(open_page):
    mesh = sw._C.picture_of_mesh([2], [0, 1], ["</script><b>dp</b>"])
    page = open_page(sw.debug.Picture(mesh, title="<i>title</i> & </script>"))
    assert words(page, "h1") == "<i>title</i> & </script>" and page.locator("b, i").count() == 0
    assert "</script><b>dp</b>=2" in page.locator("svg").inner_html().replace("&lt;", "<").replace("&gt;", ">")


def test_ten_thousand_ranks_stay_quick(open_page):
    page = open_page(sw.debug.picture(Layout((100_000, 64), (100, 100), [Shard(0), Replicate()])))
    page.locator("#rank").fill("9999")
    assert len(lit_ranks(page, ".sw-cell.lit")) >= 1
