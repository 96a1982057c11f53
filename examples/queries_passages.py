"""Negatives of queries among passages, for a retriever: mined once, drawn anew every epoch, in a plain PyTorch loop.

    python examples/queries_passages.py

1,000 queries, 3,000 passages. A third of the passages answer a query; the others may be anything, near ones included.
Embeddings come from any model that is at hand. Passages nearly as near as a query's own may answer it too, so the
margin leaves them out; of the rest the nearer ones are drawn more often. `texts[negatives]` are then the hard negatives
of any trainer; here two heads on the embeddings learn to tell them apart.
"""

import torch
import torch.nn.functional as F

import scns

torch.manual_seed(0)
topics = torch.randn(50, 64)
passages = topics[torch.randint(0, 50, (3000,))] + torch.randn(3000, 64)  # yours: model.encode(texts)
answers = torch.randperm(3000)[:1000]  # which passage answers each query
queries = passages[answers] @ torch.randn(64, 64) / 8 + passages[answers]
count = len(queries)

labels = torch.full((count + len(passages),), -1)  # -1: nobody's answer
labels[:count] = labels[count + answers] = torch.arange(count)
groups = torch.cat([torch.zeros(count), -torch.ones(len(passages))]).long()  # queries are no negatives of each other
everything = torch.cat([queries, passages])
table = scns.NeighborTable.build(everything, labels, k=100, groups=groups, rows=range(count))
uniform = scns.UniformNegatives(labels)  # for queries with no passage left; in a MixedNegatives it would draw queries
sampler = scns.InstanceNegatives(table.filtered(relative_margin=0.05), scale=10, fallback=uniform)

heads = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])  # of queries, of passages
optimizer = torch.optim.Adam(heads.parameters(), lr=1e-3)


def first_places() -> float:
    """How many queries have their own passage first among all."""
    asked, found = heads[0](queries), F.normalize(heads[1](passages), dim=1)
    return float(((asked @ found.T).argmax(1) == answers).float().mean())


for epoch in range(6):
    total = 0.0
    for rows in torch.randperm(count).split(100):
        negatives = sampler.sample(rows, 16, epoch=epoch) - count  # [100, 16], passages' numbers
        z = F.normalize(heads[0](queries[rows]), dim=1)
        own = F.normalize(heads[1](passages[answers[rows]]), dim=1)
        others = F.normalize(heads[1](passages[negatives]), dim=2)
        loss = scns.functional.info_nce(z, own, others, temperature=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 10
    print(f"epoch {epoch + 1}  loss {total:.3f}  own passage first {100 * first_places():.1f} %")
