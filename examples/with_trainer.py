"""The Trainer of Hugging Face: two processes see mostly one class of texts each, and learn both.

    mixwise launch --nproc-per-node 2 -- examples/with_trainer.py

The lines marked + are what gossip adds. No download: a small BERT with random weights, and texts of random words.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import mixwise as mw  # +

rank, world = mw.gossip.start_node()  # +


def texts(count, ones, seed):
    """Texts of 8 words, a share of them with label 1: words 0 to 49 for label 0, 50 to 99 for label 1."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, 1, generator=generator) < ones).long()
    words = torch.randint(50, (count, 8), generator=generator) + 50 * labels
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(words, labels, strict=True)]


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=2,
        initializer_range=0.2,
    )
)
callback = mw.gossip.trainer_callback(mw.graphs.ring(world))  # +
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=f"with-trainer/rank-{rank}",  # every process saves its own checkpoints
        num_train_epochs=5,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        logging_steps=10,
        use_cpu=True,
    ),
    train_dataset=texts(160 + 32 * rank, ones=[0.2, 0.8][rank % 2], seed=rank),
    eval_dataset=texts(200, ones=0.5, seed=100),
    compute_metrics=lambda shown: {"accuracy": float((shown.predictions.argmax(1) == shown.label_ids).mean())},
    callbacks=[callback],  # +
)
trainer.train()

accuracy, figures = trainer.evaluate()["eval_accuracy"], callback.gossip.metrics()
if rank == 0:
    print(f"accuracy on both classes {accuracy:.3f}   consensus distance {figures['consensus_distance']:.2e}")
    print(f"{callback.gossip.t} mixings; a process has sent {figures['bytes_parameters'] / 1e6:.1f} MB")
