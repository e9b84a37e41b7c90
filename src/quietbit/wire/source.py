"""Where payloads come from: bytes, buffers, paths, open files; read no further than they deserve.

Idea     the server knows what size a payload must have. Anything else is refused before memory is taken for
         it, a file by its first 64 bytes. What is kept is immutable or our own copy, so a caller may reuse
         a buffer, and what was checked is what is added.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from quietbit._validate import InvalidParameter, InvalidPayload, refuse_payload
from quietbit.mechanism.base import Body
from quietbit.wire.header import Header
from quietbit.wire.payload import check_body

__all__ = ["read_body"]


def read_body(source: Any, header: Header, threads: int = 1) -> Body:
    """The checked body of one payload of the mechanism that ``header`` names.

    ``source`` is bytes, any buffer of bytes, a path, or a file open for reading bytes that holds one payload
    and nothing else. A bad payload, and a file that cannot be read, raises `InvalidPayload`; something that
    is none of these raises `InvalidParameter`.
    """
    if isinstance(source, str | os.PathLike):
        try:
            with open(source, "rb") as file:
                return _from_file(file, header, threads)
        except OSError as error:
            raise InvalidPayload(
                f"payload file must be readable, got {error.strerror or 'an error'} for {os.fspath(source)!r}."
            ) from error
    if hasattr(source, "read"):
        return _from_file(source, header, threads)
    try:
        view = memoryview(source).cast("B")
    except TypeError:
        raise InvalidParameter(
            f"payload must be bytes, a buffer, a path or an open file, got a {type(source).__name__}."
        ) from None
    return _from_view(view, header, threads)


def _from_view(view: memoryview, header: Header, threads: int) -> Body:
    expected = header.expect(view[: header.head])
    if view.nbytes != header.size:
        _refuse_size(view.nbytes, header)
    body = view[header.head :]
    kept = np.frombuffer(body if isinstance(view.obj, bytes) else bytes(body), dtype=np.uint8)
    check_body(header, kept, expected, threads)
    return kept


def _from_file(file: Any, header: Header, threads: int) -> Body:
    expected = header.expect(_read(file, header.head))
    kept = np.frombuffer(_read(file, header.length), dtype=np.uint8)
    if kept.size == header.length and file.read(1):
        refuse_payload("size of the payload", f"{header.size} bytes", "more")
    if kept.size != header.length:
        _refuse_size(header.head + kept.size, header)
    check_body(header, kept, expected, threads)
    return kept


def _read(file: Any, size: int) -> bytes:
    """Up to ``size`` bytes; a pipe or a socket may deliver them in pieces."""
    data: bytes | str | None = file.read(size)
    if isinstance(data, str):
        raise InvalidParameter("payload file must be open for reading bytes, got one open for text.")
    if data is None or len(data) in (0, size):
        return data or b""
    pieces = [data]
    while (missing := size - sum(map(len, pieces))) and (more := file.read(missing)):
        pieces.append(more)
    return b"".join(pieces)


def _refuse_size(found: int, header: Header) -> None:
    what = "truncated" if found < header.size else "padded"
    refuse_payload("size of the payload", f"{header.size} bytes", f"{found} (it is {what})")
