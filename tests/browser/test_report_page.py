"""The report page in a real browser: no console errors, every control works, a phone is wide
enough.
"""

from __future__ import annotations

import pytest

from lab.report.makers import EVIL, changed, runs, sweep
from quietbit_lab.report.page import render_page, save_page

pytest.importorskip("selenium", reason="needs the package selenium")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.slow
PHONE, DESK = 360, 1200


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    broken = changed(
        runs()[0],
        status="diverged",
        reason="The run diverged in round 2.",
        points=[],
        guarantee=None,
    )
    other = [changed(run, task={"name": "mnist", "model": "scatter"}) for run in runs()[:4]]
    made = {
        "plain": runs(),
        "evil": [
            *runs()[:12],
            *(
                changed(run, EVIL, commit=EVIL, settings={"participation": EVIL})
                for run in runs()[:2]
            ),
        ],
        "mixed": [*runs(), broken, *other],
        "large": sweep(700),
        "public": runs()[-2:],
    }
    return {
        name: save_page(render_page(some, "A report"), folder / f"{name}.html").as_uri()
        for name, some in made.items()
    }


@pytest.fixture
def look(driver, pages):
    """Open a page at a width, light or dark; afterwards the console must have stayed silent."""

    def opened(name="plain", width=DESK, scheme="light"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(pages[name])
        driver.execute_script("localStorage.clear()")
        driver.refresh()
        return driver

    driver.get_log("browser")
    yield opened
    assert driver.get_log("browser") == []


def one(driver, place):
    return driver.find_element(By.CSS_SELECTOR, place)


def every(driver, place):
    return driver.find_elements(By.CSS_SELECTOR, place)


def texts(driver, place):
    return [node.text for node in every(driver, place)]


def slide(driver, value):
    script = "const t = document.getElementById('target'); t.value = arguments[0]; t.dispatchEvent(new Event('input'))"
    driver.execute_script(script, value)


def column(driver, number):
    return texts(driver, f"#rows tr > td:nth-child({number})")


def test_draws_everything(look):
    page = look()
    assert page.title == "A report"
    assert "20 runs of 3 mechanisms on digits" in one(page, "#lead").text
    assert len(every(page, "#frontier .dot")) >= 6
    assert len(every(page, "#frontier .bar")) >= 6
    assert len(every(page, "#bytes .dot")) >= 4
    assert len(every(page, "#curves .dot")) == 4 * 3  # scored after two, four and six rounds
    assert "I-MVU, 1 bit" in texts(page, "#frontier text")
    assert "zero vector" in one(page, "#guarantee").text
    assert "nobody is trusted" in one(page, "#guarantee").text
    assert "protect nobody" in one(page, "#seeded").text
    assert len(every(page, "#table-of-symbols td")) == 4
    assert sum(
        float(text) for text in texts(page, "#table-of-symbols tbody tr:first-child td")
    ) == pytest.approx(1, abs=0.02)
    assert len(every(page, "#bias path")) > 5
    assert "numpy" in one(page, "#footer").text
    assert every(page, "link, img, iframe, script[src]") == []


@pytest.mark.long
def test_the_table_sorts_by_mouse_and_keyboard(look):
    page = look()
    shown = column(page, 3)
    assert shown == sorted(shown, key=lambda text: -float(text.split()[0]))
    head = one(page, "#heads th:nth-child(3)")
    assert head.get_attribute("aria-sort") == "descending"
    one(page, "#heads th:nth-child(3) button").click()
    assert column(page, 3) == sorted(shown, key=lambda text: float(text.split()[0]))
    one(page, "#heads th:nth-child(2) button").send_keys(Keys.ENTER)
    assert one(page, "#heads th:nth-child(2)").get_attribute("aria-sort") == "ascending"
    assert one(page, "#heads th:nth-child(3)").get_attribute("aria-sort") == "none"
    assert column(page, 2) == ["5"] * 3 + ["10"] * 3 + ["20"] * 3 + ["none"]


@pytest.mark.long
def test_the_table_filters_and_counts(look):
    page = look()
    assert one(page, "#count").text == "10 of 10 rows"
    one(page, "#find").send_keys("i-mvu 146")
    assert one(page, "#count").text == "3 of 10 rows"
    assert column(page, 1) == ["I-MVU, 1 bit"] * 3
    one(page, "#find").send_keys(" nothing")
    assert one(page, "#count").text == "0 of 10 rows"
    one(page, "#find").send_keys(Keys.CONTROL, "a", Keys.DELETE)
    one(page, "#only option:nth-child(4)").click()
    assert column(page, 1) == ["SignSGD, 1 bit"] * 3
    one(page, "#rows .open").click()
    said = one(page, "#rows .detail").text
    assert "zero-out adjacency" in said
    assert "local trust" in said
    assert "step size 0.3" in said
    one(page, "#rows .open").click()
    assert every(page, "#rows .detail") == []


@pytest.mark.long
def test_the_slider_moves_the_marker_and_the_words(look):
    page = look()
    places, words = [], []
    for value in (1000, 500, 0):
        slide(page, value)
        places.append(one(page, "#frontier .marker-line").get_attribute("d"))
        words.append(one(page, "#answers").text)
        assert len(every(page, "#frontier .best")) == 3
    assert len(set(places)) == len(set(words)) == 3
    assert one(page, "#target-value").text == "≤ 5"
    assert one(page, "#target").get_attribute("aria-valuetext") == "epsilon 5"
    assert "epsilon ≤ 5 after 6 rounds" in words[2]
    assert "146 bytes per client per round" in words[2]
    one(page, "#target").send_keys(Keys.END)
    assert one(page, "#target-value").text == "≤ 20"
    assert one(page, "#marker").text == "epsilon ≤ 20"


@pytest.mark.long
def test_the_legend_hides_and_shows_a_line(look):
    page = look()
    before = len(every(page, "#frontier .dot"))
    button = one(page, "#legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(every(page, "#frontier .dot")) < before
    assert button.text not in one(page, "#answers").text
    for other in every(page, "#legend button")[1:]:
        other.click()
    assert "Nothing is shown" in one(page, "#frontier").text
    for other in every(page, "#legend button"):
        other.click()
    assert len(every(page, "#frontier .dot")) == before


@pytest.mark.long
def test_a_point_says_its_settings_to_pointer_and_keys(look):
    page = look()
    assert not one(page, "#tip").is_displayed()
    ActionChains(page).move_to_element(one(page, "#frontier .dot")).perform()
    said = one(page, "#tip").text
    assert "over 2 seeds" in said
    assert "step size" in said
    assert "zero-out adjacency" in said
    ActionChains(page).move_to_element(one(page, "h1")).perform()
    assert not one(page, "#tip").is_displayed()
    one(page, "#frontier svg").send_keys(Keys.ARROW_RIGHT)
    first = one(page, "#tip").text
    one(page, "#frontier svg").send_keys(Keys.ARROW_RIGHT)
    assert one(page, "#tip").is_displayed()
    assert one(page, "#tip").text != first


@pytest.mark.long
def test_bytes_of_a_round_or_of_the_whole_training(look):
    page = look()
    assert "a client sends in a round" in one(page, "#bytes").text
    one(page, "#bytes-all").click()
    assert "all clients during the training" in one(page, "#bytes").text
    assert one(page, "#bytes-client").get_attribute("aria-pressed") == "false"


@pytest.mark.long
def test_the_picture_follows_the_mechanism(look):
    page = look()
    buttons = {button.text: button for button in every(page, "#mechanism-choice button")}
    assert len(buttons) == 3
    buttons["Gaussian, 32 bits"].click()
    assert "no table" in one(page, "#table-of-symbols").text
    one(page, "#mechanism-choice button:last-child").click()
    assert "slope at zero" in one(page, "#mechanism-words").text


def background(page):
    return page.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.long
def test_light_and_dark_by_the_system_and_by_the_button(look):
    light = background(look(scheme="light"))
    page = look(scheme="dark")
    dark = background(page)
    assert light != dark
    colour = "return getComputedStyle(document.querySelector('#frontier .dot')).fill"
    before = page.execute_script(colour)
    one(page, "#theme").click()
    assert background(page) == light
    assert page.execute_script(colour) != before
    page.refresh()
    assert background(page) == light  # the choice is kept


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "mixed", "evil", "large"])
def test_a_phone_is_wide_enough(look, name):
    page = look(name, width=PHONE)
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE
    slide(page, 400)
    one(page, "#rows .open").click()
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE
    assert (
        page.execute_script("return document.querySelector('#frontier svg').clientWidth") <= PHONE
    )


def test_text_from_records_stays_text(look):
    page = look("evil")
    assert page.title == "A report"
    assert EVIL in texts(page, "#legend button")
    assert every(page, "img") == []
    one(page, "#find").send_keys("onerror")
    one(page, "#rows .open").click()
    assert "onerror" in one(page, "#rows .detail").text


@pytest.mark.long
def test_comparisons_are_kept_apart_and_failures_are_listed(look):
    page = look("mixed")
    assert "2 comparisons" in one(page, "#lead").text
    assert "11 of 11 rows" in one(page, "#count").text
    one(page, "#find").send_keys("diverged")
    assert "1 of 11 rows" in one(page, "#count").text
    one(page, "#rows .open").click()
    assert "diverged in round 2" in one(page, "#rows .detail").text
    one(page, "#comparison option:nth-child(2)").click()
    assert "mnist" in one(page, "#frontier-note").text
    assert len(every(page, "#rows tr")) == 2


@pytest.mark.long
def test_thousands_of_rows_are_shown_in_steps(look):
    page = look("large")
    assert "2,800 rows" in one(page, "#count").text
    assert len(every(page, "#rows tr")) == 50
    one(page, "#more").click()
    assert len(every(page, "#rows tr")) == 100
    for value in (0, 250, 500, 750):
        slide(page, value)
        assert len(every(page, "#frontier .best")) == 1


@pytest.mark.long
def test_runs_without_privacy_need_no_slider(look):
    page = look("public")
    assert not one(page, ".control").is_displayed()
    assert "no guarantee" in one(page, "#guarantee").text
    assert len(every(page, "#rows tr")) == 1
