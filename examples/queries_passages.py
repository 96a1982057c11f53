"""A retriever: queries find their passages; negatives are drawn by the encoders in training, in a plain PyTorch loop.

    python examples/queries_passages.py

2,000 queries, 6,000 passages, of which a third answer a query. Every batch encodes its queries, their passages and one
more passage a query, drawn by how near it is to the query now. Each of them is a negative of every query of the batch,
and counts so that together they stand for all 6,000; with `shared(rows, 0, ...)` the batch's own do so alone. Two small
heads on given embeddings take the encoders' place.
"""

import torch
import torch.nn.functional as F

import scns

torch.manual_seed(0)
topics = torch.randn(50, 64)
passages = topics[torch.randint(0, 50, (6000,))] + torch.randn(6000, 64)  # yours: texts, and a network that reads them
answers = torch.randperm(6000)[:2000]  # which passage answers each query
queries = passages[answers] @ torch.randn(64, 64) / 4 + passages[answers] + torch.randn(2000, 64)
held_out = torch.arange(1500, 2000)  # queries to test with
count, batch = 1500, 50  # queries to learn from

labels = torch.full((count + len(passages),), -1)  # queries first; -1: answers none
labels[:count] = labels[count + answers[:count]] = torch.arange(count)
chance = torch.zeros(len(labels))
chance[count + answers[:count]] = (batch - 1) / (count - 1)  # how likely another's passage is in a batch anyway

query_head, passage_head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)  # yours: the encoders
for head in (query_head, passage_head):
    torch.nn.init.eye_(head.weight)
optimizer = torch.optim.Adam([*query_head.parameters(), *passage_head.parameters()], lr=1e-3)


def encoded() -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([query_head(queries[:count]), passage_head(passages)])


def first_places() -> float:
    """How many queries that were held out have their own passage first among all."""
    with torch.no_grad():
        scores = query_head(queries[held_out]) @ F.normalize(passage_head(passages), dim=1).T
    return 100 * float((scores.argmax(1) == answers[held_out]).float().mean())


sampler = scns.SoftNegatives(encoded(), labels, scale=20, among=range(count, len(labels)))  # 1 / temperature
print(f"before   own passage first {first_places():.1f} %")
for epoch in range(1, 6):
    sampler.refresh_(encoded())
    for rows in torch.randperm(count).split(batch):
        own = answers[rows]
        columns, log_weights = sampler.shared(rows, 1, epoch=epoch, also=count + own, chance=chance)
        z = F.normalize(query_head(queries[rows]), dim=1)
        found = F.normalize(passage_head(passages[columns - count]), dim=1)  # [100, 64]: their own, then those drawn
        loss = scns.functional.info_nce(z, found[:batch], found, log_weights=log_weights, temperature=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  own passage first {first_places():.1f} %")
