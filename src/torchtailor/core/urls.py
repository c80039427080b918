"""What a URL leads to on this machine, and how it is shown: without its login."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

# what is before the host: up to the last @ of the part before the path
_LOGIN = re.compile(r"^((?:[a-zA-Z][a-zA-Z0-9+.-]*:/+)?)[^/?#\s@]*(?:@[^/?#\s@]*)*@")
_LOGIN_ANYWHERE = re.compile(r"(://)[^/?#\s]*@")


def local_path(url: str) -> Path | None:
    """The path of a file: URL."""
    from urllib.request import url2pathname

    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def without_login(url: str) -> str:
    """`https://user:secret@host/x` -> `https://host/x`: as it may be shown to others and used by them."""
    shown = redact(url)
    return shown.replace("****@", "", 1) if shown != url else url


def redact(url: str) -> str:
    """`https://user:secret@host/x` -> `https://****@host/x`; also of what only looks like a URL."""
    return _LOGIN_ANYWHERE.sub(r"\1****@", _LOGIN.sub(r"\1****@", url, count=1))
