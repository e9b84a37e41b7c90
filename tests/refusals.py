"""Refusals asserted by their fields: tests read no English."""

from contextlib import contextmanager

import pytest
from attrs import NOTHING

from quietbit.errors import InvalidParameter


@contextmanager
def refuses(name, value=NOTHING):
    """Expect ``InvalidParameter`` about ``name``, and about ``value`` where one is given."""
    with pytest.raises(InvalidParameter) as caught:
        yield
    assert caught.value.name == name, caught.value
    if value is not NOTHING:
        assert caught.value.value == value, caught.value
