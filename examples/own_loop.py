"""A plain PyTorch loop with semantically conditioned negatives: a memory and a sampler of scns.

    python examples/own_loop.py

Learns 32-dimensional codes of 4,000 samples by InfoNCE. A memory keeps the running mean of each sample's codes, and
begins with the untrained encoder's: random rows would teach the first epoch nothing, and can make all codes alike for
good. A sample's positive is another of its class; its negatives are 64 draws among all samples of other classes, the
more alike the likelier, weighed so that they stand for the sum over all of them.
"""

import torch
import torch.nn.functional as F

import scns

torch.manual_seed(0)
labels = torch.randint(0, 20, (4000,))
inputs = torch.randn(20, 64)[labels] + torch.randn(4000, 64)  # yours: images, texts, any frozen network's features
encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)

memory = scns.FeatureTable(len(labels), 32)
memory.update(torch.arange(len(labels)), encoder(inputs), distinct=True)
sampler = scns.SoftNegatives(memory.features, labels, scale=10)  # 1 / temperature
same = scns.Positives(labels)

for epoch in range(6):
    total = 0.0
    sampler.refresh_(memory.features)
    for rows in torch.randperm(len(labels)).split(100):
        z = F.normalize(encoder(inputs[rows] + 0.3 * torch.randn(100, 64)), dim=1)  # some noise is the augmentation
        negatives, log_weights = sampler.weights(rows, 64, epoch=epoch, correct=True)  # both [100, 64]
        loss = memory.info_nce(z, same.sample(rows, epoch=epoch)[:, 0], negatives, log_weights, temperature=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update(rows, z, distinct=True)
        total += loss.item() / 40
    print(f"epoch {epoch + 1}  loss {total:.3f}")
