"""Distil your own network into a smaller one, on your own folder of images.

    python examples/own_images.py FOLDER        # FOLDER/train/<class>/*.jpg and FOLDER/test/<class>/*.jpg (PNG, WebP)

The teacher is any nn.Module. Here it is trained first; with weights of yours, load them instead. Every objective of
`scns methods` takes the place of "infonce".
"""

import itertools
import sys

import torch
from torch import nn

import scns
from scns.augment import normalise
from scns.features import Shapes


def network(width: int) -> nn.Module:  # yours; the embedding is what goes into the last nn.Linear
    sizes = (3, width, 2 * width, 4 * width)
    stages = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
    layers = [layer for stage in stages for layer in stage]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, train.classes))
    return scns.features_of(nn.Sequential(*layers, *head), layers=[])


def look(model: nn.Module, images: scns.Images) -> scns.Features:
    with torch.no_grad():
        return model.eval()(normalise(images.pixels, images.mean, images.std), features=True)


def learn(name: str, model: nn.Module, method: nn.Module, told: scns.Features | None = None) -> None:
    optimizer = torch.optim.Adam([*model.parameters(), *method.parameters()], lr=2e-3)
    for epoch in range(1, 11):
        for rows in torch.randperm(len(train)).split(64):
            images, labels = normalise(train.pixels[rows], train.mean, train.std), train.labels[rows]
            batch = scns.Batch(images, labels, rows, torch.zeros_like(rows), torch.tensor(epoch), len(rows))
            seen, answer = model.train()(images, features=True), told and scns.Features(told[0][rows], told[1][rows])
            optimizer.zero_grad()
            sum(method(batch, seen, answer).values()).backward()
            optimizer.step()
            method.after_step(batch, seen, answer)
    print(f"{name}: {100 * (look(model, test).logits.argmax(1) == test.labels).float().mean():.1f} % on test")


torch.manual_seed(0)
train, test = (scns.datasets.load("folder", sys.argv[1], split, size=32) for split in ("train", "test"))
teacher, alone, student = network(32), network(8), network(8)
large, small = (Shapes.of(look(model, test)) for model in (teacher, student))
learn("teacher", teacher, scns.methods.build("ce", scns.methods.Setting(train.labels, large)))
learn("student alone", alone, scns.methods.build("ce", scns.methods.Setting(train.labels, small)))
told = look(teacher, train)
setting = scns.methods.Setting(train.labels, small, large, embeddings=lambda: told.embedding)
objective = scns.methods.build("infonce", setting, sampler="instance", negatives=256, kld=0.9)
learn("student of the teacher", student, objective, told)
torch.save(student.state_dict(), "student.pth")
