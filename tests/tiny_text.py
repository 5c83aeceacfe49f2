"""Folders with a random DistilBERT, BERT or ViT, a WordPiece tokenizer, and small CSV files as those of AG News."""

import csv

import torch

TOPICS = (("war", "peace"), ("match", "goal"), ("bank", "profit"), ("chip", "robot"))
WORDS = (*(word for topic in TOPICS for word in topic), "news", "team", "stock", "code", "##s", "$")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_tokenizer(folder):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)


def save(folder, head, kind, **options):
    """A random model of this kind, made by the class `head` of transformers."""
    import transformers

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "hidden_dim": 16}  # DistilBERT: dim
    config = transformers.AutoConfig.for_model(kind, **sizes, **options)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        getattr(transformers, head).from_config(config).save_pretrained(folder)
    return folder


def save_model(folder, kind="distilbert", classes=None):
    """The encoder alone, or a classifier with a head for `classes`, and its tokenizer."""
    save_tokenizer(folder)
    options = {"vocab_size": len(SPECIAL) + len(WORDS), "num_hidden_layers": 3, "max_position_embeddings": 24}
    options["initializer_range"] = 0.5  # what random numbers of the usual size do is lost in rounding
    if classes is None:
        return save(folder, "AutoModel", kind, **options)
    return save(folder, "AutoModelForSequenceClassification", kind, num_labels=classes, **options)


def save_vit(folder, size, classes):
    """A tiny vision transformer for square images."""
    options = {"num_hidden_layers": 2, "image_size": size, "patch_size": 4, "num_labels": classes}
    return save(folder, "AutoModelForImageClassification", "vit", **options)


def rows(count):
    """Records of a label from 1, a title and a description."""
    topics = [(i, TOPICS[i % 4]) for i in range(count)]
    return [
        (i % 4 + 1, f"{words[i // 4 % 2]} news", f"{words[0]} " * (1 + i % 5) + f"team {'stock ' * (i % 3)}")
        for i, words in topics
    ]


def save_csv(folder):
    """48 records for training and 12 for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 48), ("test", 12)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows(count))
    (folder / "classes.txt").write_text("World\nSports\nBusiness\nSci/Tech\n")
    return folder
