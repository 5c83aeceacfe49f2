"""Pretrained classifiers: their logits, the part of them that is trained, and features in place of the frozen part."""

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from builders import cases, refused
from mixwise.data import ag_news, tokenized
from mixwise.errors import ConfigError, DataError
from mixwise.models import build, freeze, mlp, resnet20, small_cnn, text_classifier, with_features
from mixwise.models.features import entry_of
from run_folders import read_records
from tiny_text import save_csv, save_model, save_vit

pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.xdist_group("transformers")]

KINDS = ("distilbert", "bert")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save_csv(root / "ag_news")
    return {kind: save_model(root / kind, kind) for kind in KINDS}


@pytest.fixture
def news(folders):
    return ag_news(folders["bert"].parent, tokenizer=folders["bert"], max_length=12)


def classifier(folder, **options):
    return build("text-classifier", seed=0, name=str(folder), classes=4, **options)


def trained(module):
    return [name for name, p in module.named_parameters() if p.requires_grad]


# --- the wrapper ---
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(folders, news, kind):
    """With our mask, our token types, and the last block computed for the first position alone."""
    import transformers

    own = classifier(folders[kind]).eval()
    plain = transformers.AutoModelForSequenceClassification.from_config(own.model.config).eval()
    plain.load_state_dict(own.model.state_dict())
    texts = news.train.x.take(torch.arange(10))
    pairs = tokenized([("war news", "peace"), ("goal", "team match stock")], folders[kind]).take(torch.arange(2))
    for tokens in (texts, pairs):
        mask, types = tokens != 0, {}
        if kind == "bert":
            types["token_type_ids"] = second = torch.zeros_like(tokens)
            for i, row in enumerate(tokens.tolist()):
                second[i, row.index(3) + 1 : int(mask[i].sum())] = 1
        expected, found = plain(input_ids=tokens, attention_mask=mask.long(), **types).logits, own(tokens)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        own_gradients, gradients = (
            torch.autograd.grad(logits.square().sum(), list(module.parameters()), allow_unused=True)
            for module, logits in ((own, found), (plain, expected))
        )
        torch.testing.assert_close(own_gradients, gradients, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01
    alone = torch.cat([own(texts[i : i + 1][:, texts[i] != 0]) for i in range(10)])  # padding changes nothing
    torch.testing.assert_close(own(texts), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_block_works_on_one_position(folders, news, kind):
    own, seen = classifier(folders[kind]), []
    own.blocks[-1].register_forward_hook(lambda block, args, out: seen.append(out.shape))
    own.blocks[0].register_forward_hook(lambda block, args, out: seen.append(out.shape))
    own(news.train.x.take(torch.arange(5)))
    assert [shape[1] for shape in seen] == [news.train.x.take(torch.arange(5)).shape[1], 1]


def test_a_pretrained_lower_part_stays_and_the_seed_makes_the_head(folders):
    one, same = (classifier(folders["distilbert"]).state_dict() for _ in range(2))
    other = build("text-classifier", seed=1, name=str(folders["distilbert"]), classes=4).state_dict()
    saved = load_file(folders["distilbert"] / "model.safetensors")
    for name, value in one.items():
        assert torch.equal(value, same[name])
        inside = name.removeprefix("model.distilbert.")
        if inside in saved:
            assert torch.equal(value, saved[inside])
    assert not torch.equal(one["model.classifier.weight"], other["model.classifier.weight"])


def test_options_change_the_configuration(folders):
    random, loaded = (
        classifier(folders["bert"], pretrained=pretrained, overrides={"num_hidden_layers": 2}, dropout=0.0)
        for pretrained in (False, True)
    )
    assert len(random.blocks) == 2
    weights = [module.model.bert.embeddings.word_embeddings.weight for module in (random, loaded)]
    assert not torch.equal(*weights)
    assert {part.p for part in loaded.modules() if isinstance(part, nn.Dropout)} == {0.0}
    refused(ConfigError, "dropout = 1: input should be less than 1", classifier, folders["bert"], dropout=1)
    refused(ConfigError, "attention = 'flash': .*'sdpa' or 'eager'", classifier, folders["bert"], attention="flash")
    refused(ConfigError, r"has no 'depth'; see its config.json", classifier, folders["bert"], overrides={"depth": 2})


def test_a_head_for_other_classes_is_replaced_and_logged(tmp_path, caplog):
    folder = save_model(tmp_path / "three", classes=3)
    with caplog.at_level(logging.INFO, "mixwise"):
        assert classifier(folder).model.classifier.out_features == 4
    (record,) = caplog.records
    assert record.getMessage().endswith("three has a head for 3 classes; it is replaced by a new one for 4")
    caplog.clear()
    with caplog.at_level(logging.INFO, "mixwise"):
        kept = text_classifier(str(folder), 3)  # it fits: it is used
    assert caplog.records == []
    assert torch.equal(kept.model.classifier.weight, load_file(folder / "model.safetensors")["classifier.weight"])


def test_folders_without_a_model_are_rejected(tmp_path, folders):
    (tmp_path / "empty").mkdir()
    refused(DataError, r"empty contains no config.json", classifier, tmp_path / "empty")
    folder = save_model(tmp_path / "light")
    (folder / "model.safetensors").rename(folder / "weights")
    refused(DataError, r"light contains no weights \(model.safetensors\); .*pretrained: false", classifier, folder)
    assert classifier(folder, pretrained=False).blocks
    (folder / "model.safetensors").write_bytes((folder / "weights").read_bytes()[:100])
    refused(DataError, "light cannot be loaded as AutoModelForSequenceClassification", classifier, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "weights").rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "n_layers": 5}))
    refused(DataError, r"do not fit its config.json: distilbert.transformer.layer.3.* is missing", classifier, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    refused(DataError, "light cannot be loaded", classifier, folder)


def test_an_image_classifier_of_hugging_face(tmp_path):
    module = build("image-classifier", seed=0, name=str(save_vit(tmp_path / "vit", 8, 2)), classes=5).eval()
    images = torch.randn(3, 3, 8, 8)
    assert module(images).shape == (3, 5)
    assert torch.equal(module(images), module.model(pixel_values=images).logits)
    assert trained(freeze(module, "head"))[0] == "model.vit.layernorm.weight"


# --- freezing ---
def test_the_last_blocks_and_the_head_are_trained(folders):
    bert = freeze(classifier(folders["bert"]), 1)
    assert all(".encoder.layer.2." in name or ".pooler." in name or ".classifier." in name for name in trained(bert))
    assert sum(".encoder.layer.2." in name for name in trained(bert)) == 16
    whole = classifier(folders["bert"])
    assert len(trained(freeze(whole, "all"))) == len(list(whole.parameters()))
    resnet = {".".join(name.split(".")[:2]) for name in trained(freeze(resnet20(), 2))}
    assert resnet == {"blocks.7", "blocks.8", "head.weight", "head.bias"}
    for module, train, layers in (
        (classifier(folders["distilbert"]), "head", ["model.pre_classifier", "model.classifier"]),
        (small_cnn(), "head", ["11"]),
        (small_cnn(), 1, ["7", "8", "11"]),
        (mlp((3, 3, 3, 2)), 1, ["4", "6"]),
        (mlp((3, 2)), "head", ["2"]),  # all it has
    ):
        assert trained(freeze(module, train)) == [f"{layer}.{what}" for layer in layers for what in ("weight", "bias")]


def test_frozen_parts_are_without_dropout(folders):
    module = freeze(classifier(folders["bert"], dropout=0.5), 1)
    below = [module.model.bert.embeddings, *module.blocks[:2]]
    assert not any(part.training for block in below for part in block.modules())
    assert all(part.training for part in module.blocks[2].modules())
    assert module.training
    assert module.model.dropout.training
    sequence = freeze(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)), 1)
    assert [part.training for part in sequence] == [False, False, True, True, True]


def test_numbers_of_blocks_that_a_module_does_not_have_are_rejected(folders):
    for k in (0, 4, True, "blocks"):
        message = f"train = {k!r}; this model has 3 blocks: choose all, head, or a number"
        refused(ConfigError, message, freeze, classifier(folders["bert"]), k)
    refused(ConfigError, "this model has no blocks", freeze, nn.Linear(2, 2), 1)
    refused(ConfigError, "the head of this model is unknown", freeze, nn.Linear(2, 2), "head")


# --- features ---
def losses_and_gradients(module, x, y):
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in module.parameters() if p.requires_grad]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [1, 2, "head"])
def test_features_give_the_logits_and_gradients_of_the_whole_model(folders, news, kind, train):
    module = freeze(classifier(folders[kind], dropout=0.0), train)
    modes = [part.training for part in module.modules()]
    features = with_features(news.train, module, "float32")
    at = torch.randperm(len(news.train))[:16]
    x, given, y = news.train.x.take(at), features.x.take(at), news.train.y[at]
    assert given.is_floating_point()
    assert len(list(module.blocks)) == 3
    assert [part.training for part in module.modules()] == modes
    loss, gradients = losses_and_gradients(module, x, y)
    own_loss, own_gradients = losses_and_gradients(module, given, y)
    torch.testing.assert_close(own_loss, loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own_gradients, gradients, rtol=1e-5, atol=1e-5)
    assert max(float(g.abs().max()) for g in gradients) > 1e-3
    rounded = module(with_features(news.train, module, "float16").x.take(at))
    assert 0 < (rounded - module(x)).abs().max() < 5e-3 * module(x).abs().max()


def test_features_are_computed_once_for_data_model_and_depth(folders, news, monkeypatch):
    module = freeze(classifier(folders["bert"]), 1)
    calls, features = [], type(module).features
    monkeypatch.setattr(type(module), "features", lambda self, *args: calls.append(args) or features(self, *args))

    def computed(data, module, **options):
        calls.clear()
        with_features(data, module, **options)
        return bool(calls)

    assert computed(news.train, module)
    assert not computed(news.train, module)
    assert not computed(news.train.subset([3, 1]), module)  # a part of it
    assert not computed(news.train, freeze(build("text-classifier", seed=5, name=str(folders["bert"]), classes=2), 1))
    assert computed(news.test, module)
    assert computed(news.train, module, precision="float32")
    assert computed(news.train, freeze(classifier(folders["bert"]), 2))
    whole, part = (with_features(data, module) for data in (news.train, news.train.subset([7, 3])))
    assert torch.equal(part.x.take(torch.tensor([1, 0])), whole.x.take(torch.tensor([3, 7])))
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed.model.bert.embeddings.word_embeddings.weight[5] += 1
    assert computed(news.train, changed)


def test_features_need_a_frozen_lower_part(folders, news):
    module = classifier(folders["bert"])
    assert entry_of(module) is None
    refused(ConfigError, "features need a frozen lower part", with_features, news.train, module)
    freeze(module, 1)
    module.model.bert.embeddings.LayerNorm.weight.requires_grad_(True)
    assert entry_of(module) is None
    refused(ConfigError, "block that these features enter is unknown", module, torch.zeros(1, 2, 8))


def test_a_model_with_other_connections_than_its_blocks_is_rejected(folders, news):
    module = freeze(classifier(folders["bert"]), 1)
    pooler, embedded = module.model.bert.pooler, []
    module.model.bert.embeddings.register_forward_hook(lambda part, args, out: embedded.append(out))
    pooler.register_forward_hook(lambda part, args, out: out + embedded[-1].mean(1))  # looks past the blocks
    message = "other logits from features of block 2; set task.cache_features=false"
    refused(ConfigError, message, with_features, news.train, module)


def test_features_too_large_for_float16_are_rejected(folders, news):
    module = freeze(classifier(folders["bert"]), 1)
    with torch.no_grad():
        module.blocks[1].output.LayerNorm.weight.mul_(1e6)
    refused(ConfigError, "overflows float16; use float32", with_features, news.train, module)
    assert with_features(news.train, module, "float32")


# --- through the command line ---
TINY = ("graph=ring:4", "seeds=0", "task.batch=3", "task.data.options.max_length=12", "optimizer.lr=0.01")


@pytest.fixture
def run_agnews(mixwise, folders, no_pictures):
    """Runs one of the recipes with a small model."""

    def run(recipe, kind, *words):
        return mixwise("run", recipe, f"data_dir={folders[kind].parent}", f"model_dir={folders[kind]}", *TINY, *words)

    return run


def test_mixwise_run_agnews(run_agnews, mixwise, folders, tmp_path):
    """Table 3 in tiny: the loading code of DistilBERT and AG News, all parameters trained; the model is exported."""
    import transformers

    done = run_agnews("agnews", "distilbert", "topology=ring", "steps=3", "record_every=1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "has no head for 4 classes; a new one is created" in done.stderr
    assert done.stderr.count("a new one is created") == 1
    assert "ha-dadam" in done.stdout
    scene = json.loads((tmp_path / "run/dadam/seed-0/scene.json").read_text())
    assert scene["classes"] == ["World", "Sports", "Business", "Sci/Tech"]
    assert [record["step"] for record in read_records(tmp_path / "run", "ha-dadam")] == [0, 1, 2]
    exported = mixwise("export", "run", "--variant", "dadam", "--model", "average", "--out", "m.safetensors")
    assert exported.returncode == 0, exported.stderr
    model = text_classifier(str(folders["distilbert"]), 4)
    model.load_state_dict(load_file(tmp_path / "m.safetensors"))
    exported = mixwise("export", "run", "--variant", "dadam", "--out", "model")
    assert exported.returncode == 0, exported.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained("model")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained("model")
    assert loaded.config.id2label[3] == "Sci/Tech"
    tokens = tokenizer(["war news"], return_tensors="pt")["input_ids"]
    torch.testing.assert_close(loaded(tokens).logits, model.eval()(tokens))
    assert "--out model is not empty" in mixwise("export", "run", "--variant", "dadam", "--out", "model").stderr


def test_mixwise_run_agnews_small(run_agnews, tmp_path, cache):
    """Lower blocks frozen and kept as features."""
    part = ["task.data.options.train_samples=40", "task.data.options.test_samples=10"]
    command = ["agnews-small", "bert", "topology=torus", *part, "steps=3"]
    done = run_agnews(*command, "variants=dadam,ha-dadam,qg-adam-auto", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert {path.name.partition("-")[0] for path in cache.iterdir()} == {"tokens", "features"}
    scene = json.loads((tmp_path / "run/dadam/seed-0/scene.json").read_text())
    block, pooler, head = 4 * 72 + 2 * 136 + 8 + 4 * 8, 72, 36
    assert scene["dim"] == block + pooler + head
    with_tokens = run_agnews(*command, "variants=dadam", "task.cache_features=false", "--out", "tokens")
    assert with_tokens.returncode == 0, with_tokens.stderr
    losses = [read_records(tmp_path / folder, "dadam")[-1]["loss"] for folder in ("run", "tokens")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert losses[0] != losses[1]  # float16


@cases(
    "changes, says",
    (["task.train=7"], "task.train = 7; this model has 3 blocks: choose all, head, or a number of blocks"),
    (["task.cache_features=true"], "task.cache_features = True: nothing is frozen below what is trained"),
    (["task.data.options.max_length=64"], "max_length = 64; the model has 24 positions"),
    (["task.model.kind=resnet20", "task.model.options={}"], "texts become tokens of a model"),
)
def test_mistakes_in_a_recipe_are_one_line(run_agnews, changes, says):
    done = run_agnews("agnews", "distilbert", "topology=ring", "steps=2", "variants=dadam", *changes, "--out", "run")
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
