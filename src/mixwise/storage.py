"""Bounded reading of files and YAML from outside, lines with a checksum, and writing that survives a power cut."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from mixwise.errors import ConfigError

MAX_TEXT = 4 << 20  # bytes of a recipe or of a config.yaml
_MAX_NODES = 200_000  # values of a YAML text with its aliases expanded; a recipe of 840 variants has 50,000
_MAX_DEPTH = 40
_MAX_NUMBER = 2**63
_INT, _DATE = "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"
_fsync = os.fsync


# --- reading ---
@contextmanager
def opened(path: str | Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file for reading; every failure is an `OSError` whose `strerror` gives the reason.

    Args:
        path: of the file.
        follow: whether the file may be a symbolic link.
    """
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a FIFO must not wait for its writer
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name contains a zero byte", "?")
    try:
        descriptor = os.open(path, os.O_RDONLY | flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path)) from None
        raise
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            reason = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a regular file"
            raise OSError(errno.EINVAL, reason, str(path))
        yield file


def contents(path: str | Path, most: int, *, follow: bool = True) -> bytes:
    """Return the bytes of a regular file, as `opened` does; one of more than `most` bytes is an error."""
    with opened(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most / 1e6:.3g} MB", str(path))
        return file.read()


def text(path: str | Path, most: int = MAX_TEXT, *, follow: bool = True) -> str:
    """Return the text of a regular file in UTF-8; every failure is an `OSError` as in `contents`."""
    try:
        return contents(path, most, follow=follow).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not text in UTF-8", str(path)) from None


def parsed_yaml(source: str, where: str) -> Any:
    """Return the plain values of a YAML text: mappings with keys of text, lists, text, numbers, booleans and null.

    Bounded in size, depth and expanded aliases; a date is text. Every failure is one line that begins with `where`.
    """
    try:
        if len(source) > MAX_TEXT:
            raise ValueError(f"it has more than {MAX_TEXT / 1e6:.3g} MB")
        _check_events(source)
        return yaml.load(source, _Loader)
    except Exception as error:  # the parser raises many types, and some depend on its version
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or ("unreadable" if isinstance(error, yaml.YAMLError) else error)
        raise ConfigError(f"{where}{line}: not valid YAML: {reason}") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader, without dates, with bounded whole numbers and keys of text."""

    yaml_implicit_resolvers = {
        first: [each for each in found if each[0] != _DATE]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        for key in mapping:
            if not isinstance(key, str):
                raise _problem(f"the key {key!r} is not text; write it in quotes", node)
        return mapping

    def construct_whole_number(self, node: Any) -> int:
        number = self.construct_yaml_int(node) if len(node.value) <= 80 else _MAX_NUMBER
        if abs(number) >= _MAX_NUMBER:
            raise _problem("a whole number has at most 18 digits", node)
        return int(number)


_Loader.add_constructor(_INT, _Loader.construct_whole_number)


def _problem(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _check_events(source: str) -> None:
    """Check the bounds before any value is built; an alias counts as all the values that it stands for."""
    sizes: dict[str, int] = {}  # of each anchor
    nested: list[tuple[str | None, int]] = []  # the open collections, and the values before them
    count = 0
    for event in yaml.parse(source, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in nested):
                raise _problem(f"*{event.anchor} is inside of what it stands for", event)
            count += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            count += 1
            if event.tag is not None:
                raise _problem(f"the tag {event.tag} is not allowed; write the value without it", event)
            if isinstance(event, yaml.CollectionStartEvent):
                nested.append((event.anchor, count - 1))
            else:
                sizes[event.anchor or ""] = 1
                if "\0" in event.value:
                    raise _problem("a text contains a zero byte", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = nested.pop()
            sizes[anchor or ""] = count - before
        if count > _MAX_NODES or len(nested) > _MAX_DEPTH:
            limit = f"{_MAX_NODES:,} values" if count > _MAX_NODES else f"{_MAX_DEPTH} levels"
            raise _problem(f"more than {limit}, with all aliases expanded", event)


# --- lines with a checksum ---
def sealed(line: str) -> str:
    """Return a line of JSON, a mapping that is not empty, with the CRC-32 of what stands before as its last value.

    >>> sealed('{"step": 3}')
    '{"step": 3, "crc32": "d3a4e216"}'
    """
    return line[:-1] + _seal(line[:-1].encode()).decode()


def unsealed(line: bytes) -> bytes | None:
    """Return the line as it was before it was sealed; None if a bit of it has changed since, or it has no checksum."""
    line = line.rstrip(b"\r\n")
    values, seal = line[:-_SEAL], line[-_SEAL:]
    return values + b"}" if seal == _seal(values) else None


def _seal(values: bytes) -> bytes:
    return b', "crc32": "%08x"}' % zlib.crc32(values)


_SEAL = len(_seal(b""))


# --- writing ---
@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file; when the block ends, sync it and move it to `path`.

    Whenever the machine stops, `path` is the complete old or the complete new file.
    """
    temporary = path.with_name(f"{path.name}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            _fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_text(path: Path, content: str) -> None:
    """Write a file of text as a whole (`replacing`)."""
    with replacing(path) as temporary:
        temporary.write_text(content, "utf-8")


def check_no_links(folder: Path, places: Iterable[Path]) -> None:
    """Raise `ConfigError` if a place inside of a folder, or a folder on the way to it, is a symbolic link."""
    checked = {folder}
    for place in places:
        while place not in checked:
            if place.is_symlink():
                raise ConfigError(
                    f"{place} is a link, which is not followed, so that everything is written inside of {folder}; "
                    f"put the folder itself in its place"
                )
            checked.add(place)
            place = place.parent


def make_folder(path: Path) -> None:
    """Make a folder with its parents, each of them synced."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync(file: Any) -> None:
    """Sync an open file, flushed before, or a file descriptor."""
    if not isinstance(file, int):
        file.flush()
    _fsync(file if isinstance(file, int) else file.fileno())


def sync_folder(path: Path) -> None:
    """Sync the names of the files in a folder, where the file system can."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            _fsync(folder)
        finally:
            os.close(folder)
