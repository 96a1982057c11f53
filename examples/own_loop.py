"""A plain PyTorch loop with semantically conditioned negatives: a neighbour table, a sampler and a memory of scns.

    python examples/own_loop.py

Learns 32-dimensional codes of 4,000 samples by InfoNCE. A sample's positive is its own code of the epoch before, kept
in the memory; its negatives are 4,096 draws among the 50 samples of other classes that are nearest to it in given
embeddings, which cost no more than 50 logits.
"""

import torch
import torch.nn.functional as F

import scns

torch.manual_seed(0)
labels = torch.randint(0, 20, (4000,))
embeddings = torch.randn(20, 64)[labels] + torch.randn(4000, 64)  # yours: any frozen network's features of your data
encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)

table = scns.NeighborTable.build(embeddings, labels, k=50)
sampler = scns.InstanceNegatives(table)
memory = scns.FeatureTable(len(labels), 32)

for epoch in range(6):
    total = 0.0
    for rows in torch.randperm(len(labels)).split(100):
        views = embeddings[rows] + 0.3 * torch.randn(100, 64)  # a little noise is the augmentation
        z = F.normalize(encoder(views), dim=1)
        negatives, log_weights = sampler.weights(rows, 4096, epoch=epoch)  # both [100, 50]
        loss = memory.info_nce(z, rows, negatives, log_weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update(rows, z, distinct=True)
        total += loss.item() / 40
    print(f"epoch {epoch + 1}  loss {total:.3f}")
