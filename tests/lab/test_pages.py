"""The examples of the laboratory's pages run, as those of all others do."""

import pytest

from test_docs import PAGES, is_of_the_laboratory, name, run_examples


@pytest.mark.parametrize("page", [*filter(is_of_the_laboratory, PAGES)], ids=name)
def test_examples_run(page, tmp_path, monkeypatch):
    run_examples(page, tmp_path, monkeypatch)
