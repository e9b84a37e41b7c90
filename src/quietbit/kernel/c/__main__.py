"""Build the C kernel and print its path: ``python -m quietbit.kernel.c``."""

from __future__ import annotations

import sys

from quietbit.kernel.c.build import BuildFailed, build_library

if __name__ == "__main__":
    try:
        print(build_library())
    except BuildFailed as error:
        sys.exit(f"The C kernel was not built: {error}.")
