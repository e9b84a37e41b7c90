"""Programs whose disk or locks fail at a chosen call, or that die there (`disk.c`)."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("disk.c")
ROOT = Path(__file__).parents[1]
WRITES, LOCKS = 1, 2
KILL = 0  # in place of an error's number
PRELOAD = "LD_PRELOAD"


def is_possible():
    """Whether a library can be put before the C library here."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def compiled(folder):
    """Compile the library into a folder."""
    target = folder / "disk.so"
    words = ["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(target), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    return target


def environment(library):
    """Return the variables of a program that meets the library."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, PRELOAD: str(library), "PYTHONPATH": os.pathsep.join(path)}


def run(library, code, *words):
    """Run Python code with the library; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, words)],
        env=environment(library),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def control():
    """Return the library within a program that it was loaded into."""
    return ctypes.CDLL(None)
