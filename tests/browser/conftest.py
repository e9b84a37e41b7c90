"""Chromium for the tests of pages: Debian's chromium and chromium-driver, and the package selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window, or a skip that says what is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    service = shutil.which("chromedriver")
    if chromium is None or service is None:
        pytest.skip("needs chromium and chromedriver on PATH")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    words = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
    words.append(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # chromium's own sandbox refuses root
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(service))
    yield browser
    browser.quit()
