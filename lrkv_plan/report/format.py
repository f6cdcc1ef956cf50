"""The formats that an answer can be written in."""

import enum


class Format(str, enum.Enum):
    """Output formats of every command."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
