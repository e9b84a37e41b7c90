"""Refusals asserted by their fields: tests read no English."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import NOTHING

from quietbit.errors import InvalidParameter


@contextmanager
def refuses(name: str, value: Any = NOTHING) -> Iterator[None]:
    """Expect ``InvalidParameter`` about ``name``, and about ``value`` where one is given."""
    with pytest.raises(InvalidParameter) as caught:
        yield
    assert caught.value.name == name, caught.value
    if value is not NOTHING:
        assert caught.value.value == value, caught.value
