"""LoRA adapters by gossip: A and B averaged each, or A frozen, against the training of the whole last block.

    python -m benchmarks.lora --tune          # one seed, on texts that are held out: choose the learning rates
    python -m benchmarks.lora                 # the seeds that are reported, on the test set, with the rates in RATES

MiniLM on AG News, six nodes on a ring, two of the four topics per node, D-SGD with Adam and pairs: two rounds, or
three, which are an exact average. Adapters of rank 8 in the last block and the pooler; the classifier is trained in
all variants. Needs mixwise[trainers], MiniLM and AG News (docs/text-and-images.md). The first run also computes the
features.
"""

import argparse
import json

import torch
from peft import LoraConfig, inject_adapter_in_model

import mixwise as mw
from mixwise.data import ag_news, partition
from mixwise.models import freeze, seeded, text_classifier, with_features

NODES, RANK, STEPS = 6, 8, 60
ADAPTED = r".*layer\.5\..*(query|key|value|dense)|.*pooler\.dense"
GRID = {"last block": (1e-4, 3e-4, 1e-3, 3e-3), "A and B": (1e-3, 3e-3, 1e-2), "B, A frozen": (3e-3, 1e-2, 3e-2)}
RATES = {"last block": 3e-4, "A and B": 3e-3, "B, A frozen": 1e-2}


def model(variant):
    """The classifier with the parameters of a variant trained; the lower five blocks are frozen in all of them."""
    module = freeze(text_classifier("minilm", 4, dropout=0.0), 1)
    if variant != "last block":
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=ADAPTED)
        inject_adapter_in_model(config, module.model)
        module.model.classifier.requires_grad_(True)
    for name, parameter in module.named_parameters():
        if "lora_A" in name and variant == "B, A frozen":
            parameter.requires_grad_(False)
    return module


def run(variant, rounds, lr, seed, tune=False):
    news = ag_news(tokenizer="minilm", max_length=48, train_samples=2600, test_samples=1000)
    module = seeded(lambda: model(variant), seed)
    train, test = (with_features(part, module) for part in (news.train, news.test))
    train, held_out = train.subset(torch.arange(2000)), train.subset(torch.arange(2000, 2600))
    parts = partition.by_label(train.y, NODES, labels_per_node=2, seed=seed)
    task = mw.tasks.ModuleTask(module, train, parts, batch=8, test=held_out if tune else test, seed=seed)
    last = mw.train(
        task, mw.graphs.ring(NODES), mw.policies.Pairs(rounds), seed=seed, steps=STEPS, evaluate_every=STEPS,
        optimizer=lambda rows: torch.optim.Adam(rows, lr=lr),
    ).last  # fmt: skip
    keys = ("accuracy", "accuracy_worst", "accuracy_average_model", "bytes_parameters", "consensus_distance")
    measured = {key: last.values[key] for key in keys}
    return {"variant": variant, "rounds": rounds, "lr": lr, "seed": seed, "numbers": task.layout.dim} | measured


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tune", action="store_true")
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = options.parse_args()
    for seed in [100] if options.tune else options.seeds:
        for variant, rates in GRID.items():
            for rounds in (2,) if options.tune else (2, 3):
                for lr in rates if options.tune else [RATES[variant]]:
                    print(json.dumps(run(variant, rounds, lr, seed, options.tune)), flush=True)
