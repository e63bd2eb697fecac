"""`python -m tent` is the command `tent`; see tent.command."""

from __future__ import annotations

import sys

from tent.command import main

if __name__ == "__main__":
    sys.exit(main())
