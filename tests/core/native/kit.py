"""The C client as Python functions, mechanisms it knows, and what Python's own client does with
the same words.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from attrs import evolve, frozen

from quietbit import Ball, InterpolatedMVU, Uplink, calibrate
from quietbit.client_table import client_table
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.kernel.c import build
from quietbit.kernel.rng import ChaChaBlock
from quietbit.mechanism.registry import canonical_text, noted
from quietbit.mechanism.rotation import Rotation
from quietbit.target import Target

SOURCES = (build.FOLDER / "quietbit.c", build.FOLDER / "quietbit_client.c")
FLAGS = ("-std=c11", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-DQB_PORTABLE")
VECTORS = Path(__file__).parent.parent / "vectors"
TARGET = Target(1e6, 1e-5, "zero-out")
MODEST = Target(50.0, 1e-5, "zero-out")
OK, DAMAGED, UNKNOWN, DIMENSION, TOO_LARGE, LEDGER, BUDGET = range(7)


class Table(ctypes.Structure):
    """`qb_table`."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("entries", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("budget", ctypes.c_uint64),
        ("digest", ctypes.c_uint8 * 32),
    )


def compiled(folder: Path, name: str, command: Sequence[str], *extra: str) -> Path:
    """Compile the two sources, and what ``extra`` names, with another command."""
    target = folder / name
    words = [
        *command,
        *FLAGS,
        *extra,
        *map(str, SOURCES),
        "-o",
        str(target),
        "-I",
        str(build.FOLDER),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def table_of(uplink: Uplink) -> bytes:
    """Return the table of one mechanism at one clip, with a budget that is found in a moment."""
    return client_table([uplink], MODEST)


class Client:
    """A table opened by the C client; ``release`` returns a status and bytes."""

    def __init__(self, library, table: bytes):
        self.library = library
        for name in ("qb_find", "qb_payload_size", "qb_workspace_size"):
            getattr(library, name).restype = (
                ctypes.c_void_p if name == "qb_find" else ctypes.c_size_t
            )
        self.memory = np.zeros(-(-len(table) // 8), np.uint64)
        self.memory.view(np.uint8)[: len(table)] = np.frombuffer(table, np.uint8)
        self.table = Table()
        self.status = library.qb_table_open(
            ctypes.c_void_p(self.memory.ctypes.data),
            ctypes.c_size_t(len(table)),
            ctypes.byref(self.table),
        )

    def find(self, text: str) -> ctypes.c_void_p | None:
        data = text.encode()
        place = self.library.qb_find(ctypes.byref(self.table), data, ctypes.c_size_t(len(data)))
        return None if place is None else ctypes.c_void_p(place)

    def release(self, text: str, update: np.ndarray, key: bytes) -> tuple[int, bytes]:
        entry = self.find(text)
        if entry is None:
            return UNKNOWN, b""
        payload = np.zeros(self.library.qb_payload_size(entry), np.uint8)
        workspace = np.empty(self.library.qb_workspace_size(entry) // 8 + 1, np.uint64)
        values = np.ascontiguousarray(update, np.float32)
        status = self.library.qb_release(
            ctypes.byref(self.table),
            entry,
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(values.size),
            key,
            ctypes.c_void_p(workspace.ctypes.data),
            ctypes.c_void_p(payload.ctypes.data),
        )
        return status, payload.tobytes() if status == OK else b""

    def spent(self, ledger: str) -> tuple[int, int]:
        data = ledger.encode()
        spent = ctypes.c_uint64()
        status = self.library.qb_ledger_spent(
            ctypes.byref(self.table), data, ctypes.c_size_t(len(data)), ctypes.byref(spent)
        )
        return status, spent.value

    def line(self, text: str, spent: int) -> tuple[int, str]:
        room = ctypes.create_string_buffer(128)
        length = ctypes.c_size_t()
        status = self.library.qb_ledger_line(
            ctypes.byref(self.table),
            self.find(text),
            ctypes.c_uint64(spent),
            room,
            ctypes.byref(length),
        )
        return status, room.raw[: length.value].decode()


@frozen
class Keyed:
    """Random bits of one key: those that the C client draws."""

    key: bytes

    def draw(self, count: int) -> ChaChaBlock:
        return ChaChaBlock(count, tuple(np.frombuffer(self.key, "<u4").tolist()))


def by_python(uplink: Uplink, update: np.ndarray, key: bytes, kernel: str | None = None) -> bytes:
    """The payload of Python's own client."""
    same = Uplink(uplink.mechanism, clip=uplink.clip, kernel=kernel)
    return same.send(np.asarray(update, np.float32), Keyed(key))


def text_of(uplink: Uplink) -> str:
    """The canonical text of what an uplink sends."""
    return canonical_text(uplink.mechanism, uplink.clip)


def described(name: str):
    """The mechanism of a vector: its numbers travel, and nothing is solved or calibrated here."""
    return noted(json.loads((VECTORS / f"{name}.json").read_text())["description"])


CLIPS = {
    "one bit, rotated": 0.5,
    "one bit": 0.5,
    "one bit, one large block": 3.0,
    "a seed": 2.0,
    "a seed, shared rows": 2.0,
}


def uplinks() -> dict[str, Uplink]:
    """One of every kind that the C client knows."""
    asked = {"epsilon": 2.0, "delta": 1e-5, "adjacency": "zero-out"}
    small = Ball("l2", 65)
    usual = described("one-bit-rotated")
    plain = evolve(usual, rotation=None)
    vector = calibrate("vmvu", ball=Ball("l2", 650), **asked).mechanism
    known = {
        "one bit, rotated": usual,
        "one bit": plain,
        "one bit, steep": InterpolatedMVU(solve(DesignSpec(2, 1, 12.0)), small, 8.0, True),
        "one bit, one large block": evolve(
            plain, ball=Ball("l2", 9001), rotation=Rotation(8192, 7)
        ),
        "one bit, l1": InterpolatedMVU(solve(DesignSpec(2, 1, 1.0)), Ball("l1", 21)),
        "two bits": InterpolatedMVU(solve(DesignSpec(2, 2, 2.0)), small),
        "three bits, five levels": described("three-bits-five-levels"),
        "a seed": vector,
        "a seed, shared rows": evolve(vector, rows=12345678901234567890),
        "a seed, all rows": calibrate("vmvu", ball=Ball("l2", 21), **asked).mechanism,
        "a seed, of many coordinates": calibrate(
            "vmvu", ball=Ball("l2", 20_000), **asked
        ).mechanism,
    }
    return {name: Uplink(found, clip=CLIPS.get(name, 1.0)) for name, found in known.items()}


def updates(dimension: int, count: int, seed: int) -> np.ndarray:
    """Updates of lengths from far below the clip to far above, some with zeros, some extreme."""
    generator = np.random.default_rng(seed)
    lengths = 10.0 ** generator.uniform(-6, 4, (count, 1))
    values = generator.normal(size=(count, dimension)) * lengths / np.sqrt(dimension)
    values[::7, : dimension // 2] = 0.0
    if count > 3:
        values[1] = 0.0
        values[2, 0] = 3e38
        values[3] = 1e-45
    return values.astype(np.float32)
