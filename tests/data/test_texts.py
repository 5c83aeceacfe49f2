"""Texts as data: a CSV file with errors that name the line, cached tokens, datasets of Hugging Face."""

import json
import logging
import shutil
import sys
import threading

import numpy as np
import pytest
import torch

from builders import cases, refused
from mixwise.data import Splits, ag_news, hugging_face, tokenized
from mixwise.data.ag_news import read_csv
from mixwise.data.files import model_folder, optional
from mixwise.data.tokens import Tokenizer, cached_rows, content_key, load_tokenizer, write_rows
from mixwise.errors import ConfigError, DataError
from tiny_text import rows, save_csv, save_model, save_tokenizer

pytestmark = pytest.mark.xdist_group("transformers")  # importing it takes seconds: once


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def news(tmp_path):
    return save_csv(tmp_path / "data" / "ag_news").parent


# --- the CSV file ---
def written(tmp_path, content):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    return path


def test_quotes_backslashes_and_umlauts_in_a_csv_file(tmp_path):
    content = '\ufeff"3","Wall St. ""Bears""","profits of\\\\the bank, \\$5"\n"1","Ä","b"\r\n'
    labels, texts = read_csv(written(tmp_path, content.encode()))
    assert labels == [2, 0]
    assert texts == ['Wall St. "Bears" profits of the bank, $5', "Ä b"]


@cases(
    "line, says",
    (b'"1","a "quote","b"', 'expected after .*; .*"" for a quote'),
    (b'"1","never closed', "unexpected end of data"),
    (b'"5","a","b"', "unknown label '5', expected 1 to 4"),
    (b'"World","a","b"', "unknown label 'World'"),
    (b'"1","a"', "2 columns, expected 3"),
    (b"", "0 columns, expected 3"),
    (b'"1"," ",""', "the record has no text"),
    (b'"1","\xe9","b"', "can't decode byte 0xe9 in position 5.*in UTF-8"),
)
def test_an_invalid_line_is_named_by_its_number(tmp_path, line, says):
    path = written(tmp_path, b'"1","a","b"\n' * 6 + line + b'\n"1","a","b"\n')
    refused(DataError, rf"train\.csv, line 7: .*{says}", read_csv, path, 4)


def test_missing_files_are_named(tmp_path, news, cache, encoder):
    (news / "ag_news" / "test.csv").unlink()
    for folder, missing in ((tmp_path / "none", "none/ag_news/train.csv; put train.csv, test.csv"), (news, "test.csv")):
        refused(DataError, f"there is no .*{missing}", ag_news, folder, tokenizer=encoder)


def test_both_splits_in_the_order_of_the_file_and_a_part_that_is_always_the_same(news, cache, encoder):
    splits, some, again = (ag_news(news, tokenizer=encoder, max_length=9, train_samples=n) for n in (None, 10, 10))
    assert (len(splits.train), len(splits.test), len(some.train)) == (48, 12, 10)
    assert splits.train.y.tolist() == [label - 1 for label, _, _ in rows(48)]
    assert splits.train.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert torch.equal(some.train.y, again.train.y)
    everything = [row[row > 0].tolist() for row in splits.train.x.take(torch.arange(48))]
    assert all(row[row > 0].tolist() in everything for row in some.train.x.take(torch.arange(10)))
    inside = ag_news(news / "ag_news", tokenizer=encoder, max_length=9)  # the folder itself
    assert torch.equal(inside.train.x.take(torch.arange(48)), splits.train.x.take(torch.arange(48)))
    (news / "ag_news" / "classes.txt").unlink()
    assert ag_news(news, tokenizer=encoder).train.classes == 4
    message = "train_samples = 49; .* has 48 samples: give a number from 1 to 48"
    refused(DataError, message, ag_news, news, tokenizer=encoder, train_samples=49)


# --- tokens ---
def test_tokens_are_those_of_the_tokenizer_padded_to_the_longest_of_the_batch(cache, encoder):
    texts = ["war news", "goal", "bank profits $ code robot chip", "team"]
    samples, backend = tokenized(texts, encoder, 6), load_tokenizer(encoder).backend
    expected = [backend(text, truncation=True, max_length=6)["input_ids"] for text in texts]
    at = torch.tensor([3, 0, 1])
    batch = samples.take(at)
    assert batch.dtype == torch.int64
    assert batch.tolist() == [expected[i] + [0] * (4 - len(expected[i])) for i in at.tolist()]
    assert samples.take(torch.tensor([2])).shape == (1, 6)  # cut
    part = samples.subset(torch.tensor([2, 0])).subset(torch.tensor([1]))
    assert (part.take(torch.tensor([0])).tolist(), len(part)) == ([expected[0]], 1)
    pair = tokenized([("war", "peace news")], encoder).take(torch.tensor([0]))
    assert pair.tolist() == [backend("war", "peace news")["input_ids"]]


def test_tokens_are_computed_once_for_a_tokenizer_a_length_and_texts(cache, encoder, tmp_path, monkeypatch):
    computed, call = [], Tokenizer.__call__
    monkeypatch.setattr(Tokenizer, "__call__", lambda self, *args: computed.append(args) or call(self, *args))
    texts, copied = ["war news", "goal"], shutil.copytree(encoder, tmp_path / "elsewhere")
    for folder in (encoder, encoder, copied):  # the same tokenizer at another place
        tokenized(texts, folder, 8)
    assert len(computed) == 1
    other = shutil.copytree(copied, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps({**content, "normalizer": None}))
    for changed in ((texts, encoder, 9), ([*texts, "war"], encoder, 8), (texts, other, 8)):
        tokenized(*changed)
    assert len(computed) == 4


@pytest.mark.parametrize("damage", ["cut", "longer", "flip", "no seal", "nonsense", "no offsets"])
def test_a_damaged_cache_is_computed_again(cache, encoder, damage, monkeypatch):
    monkeypatch.setattr("mixwise.data.tokens._CHECKED", 0 if damage == "longer" else 1 << 26)
    texts = ["war news", "goal", "bank profits"]
    expected = tokenized(texts, encoder).take(torch.arange(3))
    (place,) = cache.iterdir()
    content = (place / "values.npy").read_bytes()
    {
        "cut": lambda: (place / "values.npy").write_bytes(content[:-4]),
        "longer": lambda: (place / "values.npy").write_bytes(content + b"more"),  # large files: only their size
        "flip": lambda: (place / "values.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "no seal": (place / "seal.json").unlink,
        "nonsense": lambda: (place / "seal.json").write_text("{"),
        "no offsets": (place / "offsets.npy").unlink,
    }[damage]()
    assert torch.equal(tokenized(texts, encoder).take(torch.arange(3)), expected)
    assert (place / "values.npy").read_bytes() == content
    assert [path.name for path in cache.iterdir()] == [place.name]  # nothing is left behind


def test_several_processes_may_compute_the_same_rows_at_once(cache):
    """All are in `make` at the same time; each gets whole rows, and one folder stays."""
    inside, key, found = threading.Barrier(4), content_key("tokens", "a"), []

    def make(folder):
        inside.wait(timeout=20)
        write_rows(folder, [2, 0, 1], (), np.int32, [np.array([1, 2, 3])])

    threads = [threading.Thread(target=lambda: found.append(cached_rows(key, make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert [[row.tolist() for row in rows] for rows in found] == [[[1, 2], [], [3]]] * 4
    assert len(list(cache.iterdir())) == 1


def test_an_interrupted_computation_leaves_nothing_behind(cache):
    def make(folder):
        write_rows(folder, [1], (), np.int32, [np.array([1])])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_rows("tokens-x", make)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_or_is_full(cache, monkeypatch, tmp_path):
    def make(folder):
        write_rows(folder, [10**15], (), np.int32, [])

    refused(DataError, r"free space, 4000000.0 GB are needed; set MIXWISE_CACHE", cached_rows, "tokens-x", make)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIXWISE_CACHE", str(tmp_path / "file" / "cache"))
    refused(DataError, r"cannot be written .* set MIXWISE_CACHE to another folder", cached_rows, "tokens-x", make)


def test_progress_is_logged(cache, encoder, monkeypatch, caplog):
    monkeypatch.setattr("mixwise.data.files._INTERVAL", 0.0)
    monkeypatch.setattr("mixwise.data.tokens._CHUNK", 2)
    with caplog.at_level(logging.INFO, "mixwise"):
        tokenized(["war"] * 4, encoder, name="four words")
    assert [r.getMessage().partition(" %")[0] for r in caplog.records] == [
        "four words: tokens of 4 texts: 50", "four words: tokens of 4 texts: 100"
    ]  # fmt: skip


def test_a_tokenizer_that_is_missing_or_broken(tmp_path, encoder):
    (tmp_path / "none").mkdir()
    refused(DataError, "none contains no tokenizer .*; copy the files of the mod", load_tokenizer, tmp_path / "none")
    save_tokenizer(tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    refused(DataError, "broken: its tokenizer cannot be read", load_tokenizer, tmp_path / "broken")
    save_tokenizer(tmp_path / "damaged")
    content = json.loads((tmp_path / "damaged" / "tokenizer.json").read_text())
    content["model"]["vocab"]["war"] = 10**9  # written out, all numbers before it take 4 GB
    (tmp_path / "damaged" / "tokenizer.json").write_text(json.dumps(content))
    rule = r"one of them has the number 1000000000; numbers are below 16777216: download it again"
    refused(DataError, rule, load_tokenizer, tmp_path / "damaged")
    refused(DataError, "max_length = 2", tokenized, ["war"], encoder, 2)


# --- folders of models ---
def test_a_model_is_searched_among_the_data(tmp_path, monkeypatch, encoder):
    monkeypatch.setenv("MIXWISE_DATA", str(encoder.parent))
    assert model_folder("tiny") == encoder
    assert model_folder("someone/tiny") == encoder  # a name on the hub with a local folder
    assert model_folder("tiny", data_dir=tmp_path) == encoder
    assert model_folder("else", model_dir=encoder) == encoder
    assert model_folder("tiny", model_dir=encoder.parent) == encoder
    message = "model_dir = .*no is not a folder; give the one"
    refused(DataError, message, model_folder, "tiny", model_dir=tmp_path / "no")
    refused(DataError, r"there is no folder \./nowhere", model_folder, "./nowhere")


def test_a_name_of_the_hub_without_a_connection_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path))
    with pytest.raises(DataError) as offline:
        model_folder("someone/no-such-model")
    for words in ("HF_HUB_OFFLINE is set", "hf download someone/no-such-model --local-dir DIR", "model_dir=…"):
        assert words in str(offline.value)
    asked = []

    def unreachable(url, timeout):
        asked.append((url, timeout))
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    refused(DataError, "no route to host", model_folder, "someone/no-such-model")
    assert [url.rpartition("/api/")[2] for url, _ in asked] == ["models/someone/no-such-model"]  # once
    assert asked[0][1] <= 10


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(ConfigError, r"pip install 'mixwise\[text\]'", optional, "transformers", "text")


# --- datasets of Hugging Face ---
@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    return datasets


def save_json(folder, **parts):
    folder.mkdir()
    for name, content in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)) + "\n")
    return folder


def test_columns_of_files_in_a_folder_are_inferred(tmp_path, cache, hub_cache, encoder):
    content = [{"sentence": f"war {'news ' * i}", "label": ["no", "yes"][i % 2], "id": i} for i in range(6)]
    folder = save_json(tmp_path / "set", train=content, validation=content[:2])
    splits = hugging_face(str(folder), tokenizer=encoder)
    assert isinstance(splits, Splits)
    assert splits.train.class_names == ("no", "yes")
    assert (splits.train.y.tolist(), len(splits.test)) == ([0, 1] * 3, 2)
    assert splits.train.x.take(torch.tensor([1])).tolist() == [load_tokenizer(encoder).backend("war news")["input_ids"]]
    assert len(hugging_face(None, folder, tokenizer=encoder, train_samples=3).train) == 3


def test_pairs_of_texts_written_by_save_to_disk(tmp_path, cache, hub_cache, encoder):
    datasets = hub_cache
    features = datasets.Features(
        {"a": datasets.Value("string"), "b": datasets.Value("string"), "which": datasets.ClassLabel(names=["x", "y"])}
    )
    part = datasets.Dataset.from_dict({"a": ["war", "goal"], "b": ["peace", "team"], "which": [1, 0]}, features)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "saved")
    splits = hugging_face("saved", tmp_path, text=["a", "b"], tokenizer=encoder)
    assert splits.train.class_names == ("x", "y")
    assert splits.train.y.tolist() == [1, 0]
    expected = load_tokenizer(encoder).backend("goal", "team")["input_ids"]
    assert splits.train.x.take(torch.tensor([1])).tolist() == [expected]
    for message, options in [
        (r"columns a \(string\), b \(string\), which .*; it is unclear which contains the text", {}),
        ("text = 'c' is none of them: name it with text=", {"text": "c"}),
        ("give one column, or two", {"text": ["a", "b", "a"]}),
        ("has no split 'dev'; it has train, test: name one with test=", {"text": "a", "test": "dev"}),
        ("saved contains texts; name the model whose tokenizer", {"text": "a", "tokenizer": None}),
    ]:
        refused(DataError, message, hugging_face, "saved", tmp_path, **{"tokenizer": encoder, **options})


GOOD = [{"text": "war", "label": 0}, {"text": "goal", "label": 1}]
UNLABELED = [{"text": "war", "kind": 1}]


@cases(
    "train, test, message",
    (GOOD, [GOOD[0], {"text": "x", "label": 7}], "test, row 1: unknown label 7 in 'label'; .* has 0, 1"),
    ([*GOOD, {"text": " ", "label": 1}], GOOD, "row 2: no text in 'text'"),
    ([{"text": "war", "label": 0.5}], GOOD, "contains 0.5; labels are whole numbers or names"),
    (UNLABELED, UNLABELED, "columns .*text .*kind .*; it is unclear which contains the label"),
)
def test_rows_that_cannot_be_used_are_named(tmp_path, cache, hub_cache, encoder, train, test, message):
    folder = save_json(tmp_path / "set", train=train, test=test)
    refused(DataError, message, hugging_face, str(folder), tokenizer=encoder)


def test_folders_without_a_dataset_and_unreachable_names_are_rejected(tmp_path, hub_cache, monkeypatch, encoder):
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path))
    (tmp_path / "nothing").mkdir()
    for message, given in (
        ("nothing cannot be read as a dataset .* parquet, csv or json", {"name": "nothing"}),
        ("--repo-type dataset", {"name": "someone/some-data"}),
        ("no dataset is given", {}),
        ("there is no folder .*no; give one", {"name": "./no"}),
        ("there is no folder .*no; give one", {"data_dir": tmp_path / "no"}),
    ):
        refused(DataError, message, hugging_face, **given, tokenizer=encoder)
