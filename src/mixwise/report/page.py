"""One self-contained HTML page about one or several run folders: the files of template/ and the data in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError
from mixwise.report.folder import RunFolder, read_folders
from mixwise.report.page_data import page_data

# In the order in which they are joined: later files use names that earlier ones define.
SCRIPTS = (
    "dom.js", "format.js", "model.js", "results.js", "curves.js", "frames.js", "ribbons.js", "heat.js", "network.js",
    "partition.js", "reproduce.js", "main.js",
)  # fmt: skip


def save_page(folders: Sequence[Path], out: Path) -> list[RunFolder]:
    """Write the report of these run folders; returns what was read."""
    found = read_folders(folders)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(page_data(found)), "utf-8")
    except OSError as error:
        raise ConfigError(f"the report {out} cannot be written: {error.strerror}; choose another with --out") from None
    return found


def page(data: dict[str, Any]) -> str:
    """The page with its data; its script and style are allowed by their hashes, so that nothing else can run."""
    template = resources.files("mixwise.report") / "template"
    style = (template / "style.css").read_text("utf-8")
    parts = [(template / name).read_text("utf-8") for name in SCRIPTS]
    script = "'use strict';\n(() => {\n" + "\n".join(parts) + "\n})();"
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; "
        f"style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'"
    )
    title = escape(f"{data['title']} – mixwise")
    values = {"policy": policy, "title": title, "style": style, "script": script, "data": in_html(data)}
    return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], (template / "page.html").read_text("utf-8"))


def in_html(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element around it, whatever names users have chosen."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
