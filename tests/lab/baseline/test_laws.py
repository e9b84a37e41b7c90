"""Every law of the library's mechanisms, held by the baselines too."""

from __future__ import annotations

from typing import Any

import pytest

from core.laws.test_mechanisms import *  # noqa: F403
from core.mechanism.makers import LIBRARY, MECHANISMS
from lab.baseline.makers import BASELINES

OTHERS = {name: found for name, found in MECHANISMS.items() if name not in LIBRARY} | BASELINES


@pytest.fixture(params=OTHERS.values(), ids=OTHERS.keys())
def mechanism(request: pytest.FixtureRequest) -> Any:
    return request.param
