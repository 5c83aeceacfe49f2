"""Bounded reading of what comes from outside, and writing that survives a power cut."""

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from builders import refused
from mixwise.errors import ConfigError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.recipe import parse_seeds
from mixwise.storage import contents, parsed_yaml, replacing, sealed, text, unsealed, write_text

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{q}: &{q} [{','.join(9 * [f'*{p}'])}]" for p, q in pairwise("abcdefghij")
)
REFUSED = {
    "!!int x": "line 1: .*tag:yaml.org,2002:int is not allowed",
    "a: 1\nb: !!python/object/apply:os.system [ls]": "line 2: .*is not allowed",
    "a: " + "9" * 5000: "a whole number has at most 18 digits",
    "[" * 100_000: "more than 40 levels",
    BOMB: "more than 200,000 values",
    "&a [*a]": r"\*a is inside of what it stands for",
    "a: [1": "line 2: not valid YAML",
    "1: 2": "the key 1 is not text",
    "on: 2": "the key True is not text",
    '"\\0"': "zero byte",
    "\x01": "unreadable",
    "\udcff": "surrogates not allowed",
    "x" * 5_000_000: "more than 4.19 MB",
}


@pytest.mark.parametrize("source", REFUSED, ids=lambda source: source[:20])
def test_yaml_that_is_too_large_deep_or_odd_is_one_line(source):
    refused(ConfigError, f"^recipe r.*{REFUSED[source]}", parsed_yaml, source, "recipe r")


def test_dates_are_text_and_aliases_are_expanded():
    assert parsed_yaml("a: 2001-13-01\nb: 2024-01-01", "") == {"a": "2001-13-01", "b": "2024-01-01"}
    assert parsed_yaml("a: &x {k: 1}\nb: [*x, *x]\nc: {<<: *x, l: 2}", "")["c"] == {"k": 1, "l": 2}


def test_seeds_are_bounded_before_they_are_listed():
    refused(ConfigError, "more than 10,000", parse_seeds, "0-99999999999")
    assert parse_seeds([1, "3-4"]) == [1, 3, 4]


def test_errors_do_not_repeat_long_values():
    for override, most in (f"steps={'x' * 100_000}", 600), (f"name={'a ' * 50_000}", 1500):
        with pytest.raises(ConfigError) as told:
            plan_experiment(load_recipe("quadratics"), [override])
        assert len(str(told.value)) <= most


# --- files ---
def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert contents(tmp_path / "link", 5) == b"12345"
    for reason, path, most in (
        ("more than", tmp_path / "file", 4),
        ("not a regular file", tmp_path / "fifo", 4),
        ("directory", tmp_path, 4),
        ("zero byte", "a\0b", 5),
    ):
        refused(OSError, reason, contents, path, most)
    refused(OSError, "it is a link", contents, tmp_path / "link", 5, follow=False)
    (tmp_path / "file").write_bytes(b"\xff")
    refused(OSError, "UTF-8", text, tmp_path / "file")


def test_a_file_is_synced_before_it_has_its_name_and_the_name_after(tmp_path):
    """Without either, a power cut leaves an empty file, or neither the old nor the new one."""
    path, seen = tmp_path / "config.yaml", []
    path.write_text("old")

    def remember(file):
        place = Path(os.readlink(f"/proc/self/fd/{file}"))
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        seen.append(
            (place.name if not is_folder else "folder", path.read_text(), os.fstat(file).st_size * (not is_folder))
        )

    with patch("mixwise.storage._fsync", remember):
        write_text(path, "new text")
    assert seen == [("config.yaml.part", "old", 8), ("folder", "new text", 0)]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path) as temporary:
        temporary.write_text("half") and (tmp_path / "missing").read_text()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "old")]


# --- lines with a checksum ---
def test_a_sealed_line_is_json_and_every_flipped_bit_of_it_is_seen():
    line = sealed('{"step": 3, "loss": 0.25}').encode()
    assert json.loads(line).keys() == {"step", "loss", "crc32"}
    assert unsealed(line) == unsealed(line + b"\r\n") == b'{"step": 3, "loss": 0.25}'
    for bit in range(8 * len(line)):
        changed = bytearray(line)
        changed[bit // 8] ^= 1 << bit % 8
        assert unsealed(bytes(changed)) is None
    for cut in range(len(line)):
        assert unsealed(line[:cut]) is None
