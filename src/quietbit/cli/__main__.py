"""``python -m quietbit.cli``, where the command itself is not on the path."""

import sys

from quietbit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
