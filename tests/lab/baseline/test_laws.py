"""Every law of the library's mechanisms, held by the baselines too."""

from __future__ import annotations

from typing import Any

import pytest

from core.laws.test_mechanisms import *  # noqa: F403
from lab.baseline.makers import BASELINES


@pytest.fixture(params=BASELINES.values(), ids=BASELINES.keys())
def mechanism(request: pytest.FixtureRequest) -> Any:
    return request.param
