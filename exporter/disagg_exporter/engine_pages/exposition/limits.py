"""What a page may make us work."""

from __future__ import annotations

# A rank has some hundred wanted lines of 100 bytes, so this is room for a hundred ranks; the
# parser's time grows with the square of a line.
MAX_WANTED_BYTES = 1024 * 1024
MAX_LINE_BYTES = 4096

MAX_WANTED_LINES = 10_000
MAX_LINES = 200_000
