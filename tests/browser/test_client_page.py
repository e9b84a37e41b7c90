"""Two tabs take part in a run with a Python server: the accuracy is that of the same run without
tabs.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("selenium", reason="needs the package selenium")
from selenium.webdriver.common.by import By

FOLDER = Path(__file__).parents[2] / "examples" / "browser"
PHONE = 390
SECONDS = 300


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("browser_demo_server", FOLDER / "server.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def simulated(demo):
    """The same run, all clients in Python."""
    run = demo.Run(tabs=0, rounds=demo.ROUNDS)
    while run.round < demo.ROUNDS:
        run.finish_round()
    return run.accuracy()


def test_a_run_without_tabs_learns_and_strangers_are_refused(demo):
    assert simulated(demo) > 0.7
    run = demo.Run(tabs=1, rounds=demo.ROUNDS)
    payload = run.uplink.send(demo.train(run.model, *run.digits(0)))
    for client, number, data in (
        (1, 0, payload),
        (0, 1, payload),
        (0, 0, payload[:-1]),
        (0, 0, bytes(80)),
    ):
        with pytest.raises(demo.QuietbitError):
            run.add(client, number, data)
    assert run.round == 0
    run.add(0, 0, payload)
    assert run.round == 1


@pytest.mark.long
def test_two_tabs_reach_the_accuracy_of_the_simulator(demo, driver, tmp_path):
    run = demo.Run(tabs=2, rounds=demo.ROUNDS)
    server = ThreadingHTTPServer(("127.0.0.1", 0), demo.handler_of(run))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}/"
    try:
        driver.set_window_size(PHONE + 10, 844)
        driver.get(f"{place}?client=0")
        tabs = [driver.current_window_handle]
        driver.switch_to.new_window("tab")
        driver.get(f"{place}?client=1")
        tabs.append(driver.current_window_handle)
        for tab in tabs:
            driver.switch_to.window(tab)
            driver.find_element(By.ID, "start").click()
        wait(driver, tabs, run)
        budget = int.from_bytes(run.table[16:24], "little")
        for tab in tabs:
            driver.switch_to.window(tab)
            sent = driver.find_elements(By.CSS_SELECTOR, "#sent li")
            assert len(sent) == demo.ROUNDS
            assert all("80 bytes" in row.text for row in sent)
            used = f"{demo.ROUNDS} of {budget} releases used"
            assert driver.find_element(By.ID, "budget-text").text == used
        check_page(driver, tmp_path)
        # The budget outlives the page: a new run in the same browser may not spend it twice.
        driver.get(f"{place}?client=1")
        spent = driver.execute_async_script(
            "const done = arguments[0]; import('/quietbit.js').then(async (q) => {"
            "const table = await (await fetch('/table')).arrayBuffer();"
            "const client = await q.Client.load(await (await fetch('/quietbit.wasm')).arrayBuffer(), table);"
            "const ledger = await q.Ledger.open('demo-1', client);"
            "const mechanism = client.find((await (await fetch('/round')).json()).text);"
            "const before = await ledger.spent(); let refused = 0;"
            "for (let i = before; i < client.budget + 2; i++)"
            " { try { await ledger.release(mechanism, new Float32Array(650)); }"
            " catch (error) { refused = error.status; } }"
            "done([before, await ledger.spent(), client.budget, refused]); })"
        )
        assert spent == [demo.ROUNDS, budget, budget, 6]
    finally:
        server.shutdown()
        server.server_close()
    # 297 unseen digits, and noise: in 30 runs of the simulator accuracies had a deviation of 0.02.
    assert abs(run.accuracy() - simulated(demo)) < 0.15
    assert run.accuracy() > 0.7


def wait(driver, tabs, run):
    end = time.monotonic() + SECONDS
    done = set()
    while len(done) < len(tabs):
        assert time.monotonic() < end, [run.round, run.answered]
        for tab in tabs:
            driver.switch_to.window(tab)
            status = driver.find_element(By.ID, "status").text
            assert "Stopped" not in status, status
            if status.startswith("Done"):
                done.add(tab)
        time.sleep(0.2)


def check_page(driver, folder):
    """No console errors, nothing wider than a phone, and names for what people use."""
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert [entry for entry in errors if "favicon" not in entry["message"]] == []
    widths = driver.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert widths[0] <= widths[1]
    assert driver.find_element(By.ID, "budget").accessible_name == "Privacy budget of this tab"
    assert driver.find_element(By.ID, "start").accessible_name == "Take part as client 1"
    assert driver.find_element(By.ID, "status").aria_role == "status"
    picture = os.environ.get("QUIETBIT_SCREENSHOTS")
    if picture:
        driver.save_screenshot(str(Path(picture, "client-page.png")))
