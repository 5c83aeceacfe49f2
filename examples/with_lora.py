"""LoRA adapters of PEFT: two processes see mostly one class of texts each, and only adapters and head travel.

    mixwise launch --nproc-per-node 2 -- examples/with_lora.py

The lines marked + are what gossip adds to the loop, and the line marked - is what it replaces. No download: a small
BERT with random weights, and texts of random words.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import mixwise as mw  # +

rank, world = mw.gossip.start_node()  # +


def texts(count, ones, seed):
    """Texts of 8 words, a share of them with label 1: words 0 to 49 for label 0, 50 to 99 for label 1."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, generator=generator) < ones).long()
    return torch.randint(50, (count, 8), generator=generator) + 50 * labels[:, None], labels


torch.manual_seed(rank)
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=2,
    initializer_range=0.2,
)
lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
model = get_peft_model(BertForSequenceClassification(config), lora)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
gossip = mw.Gossip(model, optimizer, mw.graphs.ring(world))  # +
words, labels = texts(160, ones=[0.2, 0.8][rank % 2], seed=rank)
for _ in range(10):
    for batch in torch.randperm(len(words)).split(8):
        optimizer.zero_grad()
        model(input_ids=words[batch], labels=labels[batch]).loss.backward()
        gossip.step()  # +  in place of: - optimizer.step()
figures = gossip.metrics()
model.load_state_dict(gossip.average())  # a collective call; after it, all processes have the averaged adapters
if rank == 0:
    model.save_pretrained("with-lora")

model.eval()
test, labels = texts(200, ones=0.5, seed=100)
right = float((model(input_ids=test).logits.argmax(1) == labels).float().mean())
if rank == 0:
    sent, whole = gossip.row.X.numel(), sum(p.numel() for p in model.parameters())
    print(f"accuracy on both classes {right:.3f}   consensus distance {figures['consensus_distance']:.2e}")
    print(f"{gossip.t} mixings of {sent:,} of {whole:,} parameters")
