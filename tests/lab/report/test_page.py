import json
import re

from lab.report.makers import EVIL, changed, runs
from quietbit_lab.report.page import render_page, save_page
from refusals import refuses


def test_one_file_that_asks_nothing_of_any_network():
    page = render_page(runs(), "A title")
    assert "<title>A title</title>" in page
    assert "{{" not in page
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address that is fetched
    assert not re.search(r"<(link|img|iframe)|src=|@import|url\(", page)
    assert "default-src 'none'" in page
    assert len(page) < 150_000


def test_no_text_from_a_record_can_become_markup():
    evil = changed(runs()[0], EVIL, commit=EVIL, task={"name": EVIL}, versions={EVIL: EVIL})
    page = render_page([evil, *runs()[1:4]], EVIL)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    data = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    ).group(1)
    assert json.loads(data)["title"] == EVIL
    assert "<" not in data


def test_the_same_runs_give_the_same_page():
    assert render_page(runs(), "t") == render_page(runs(), "t")


def test_a_page_is_saved_whole_under_a_name_that_browsers_open(tmp_path):
    assert save_page("x", tmp_path / "p.html").read_text() == "x"
    with refuses("end of the report's file name", "p.txt"):
        save_page("x", tmp_path / "p.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["p.html"]
