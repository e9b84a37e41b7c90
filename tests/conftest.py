"""Shared by every test: a private cache, the same examples on every change, and the order.

HYPOTHESIS_PROFILE=fresh draws new examples, for nightly runs.
"""

import gc
import logging
import os
import signal
import threading

import pytest
from hypothesis import settings

from owner_log import owner_log as owner_log

MOST_SECONDS = 900  # of the longest campaign, several times over

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell's background jobs ignore Ctrl-C, and so would every process of the tests that try it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all is collected: what is imported stays


def pytest_collection_finish():
    """Leave what was imported and collected, 700,000 objects, out of every later search for
    garbage.
    """
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Whoever waits for other processes goes first: one worker waits, and the others compute
    meanwhile.
    """
    items.sort(key=lambda item: item.path.parent.name not in ("engines", "packaging"))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """One folder for all workers of a run: a design or profile is solved once, whoever asks
    first.
    """
    base = tmp_path_factory.getbasetemp()
    return str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache")


@pytest.fixture(scope="session", autouse=True)
def private_cache(shared_cache):
    os.environ["QUIETBIT_CACHE"] = shared_cache


@pytest.fixture(autouse=True)
def heard():
    """Flower's log is heard by every test, whatever the engines' own set-up of logging has shut
    before it.
    """
    logging.disable(logging.NOTSET)
    flower = logging.getLogger("flwr")
    flower.disabled, flower.propagate = False, True
    flower.setLevel(logging.DEBUG)


def waits_for_ever(number, frame):
    raise TimeoutError(f"The test took more than {MOST_SECONDS} seconds.")


@pytest.fixture(autouse=True)
def bounded():
    """Fail a test that waits for ever, and go on with the others; where signals exist, by one that
    no test and no app uses.
    """
    if not hasattr(signal, "SIGUSR2"):
        yield
        return
    signal.signal(signal.SIGUSR2, waits_for_ever)
    main = threading.main_thread().ident
    clock = threading.Timer(MOST_SECONDS, signal.pthread_kill, (main, signal.SIGUSR2))
    clock.daemon = True
    clock.start()
    yield
    clock.cancel()
    clock.join()


@pytest.fixture(autouse=True)
def interruptible():
    """Let Ctrl-C end the tests: NVFlare's client keeps it from the engine's thread."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if signal.getsignal(signal.SIGINT) is not handler:
        signal.signal(signal.SIGINT, handler)
