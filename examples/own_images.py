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
from scns.teacher import Teacher


def network(width: int) -> nn.Module:  # yours; the embedding is what goes into the last nn.Linear
    sizes = itertools.pairwise((3, width, 2 * width, 4 * width))
    layers = [m for a, b in sizes for m in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, train.classes))
    return scns.features_of(nn.Sequential(*layers, *head), layers=[])


def look(model: nn.Module, images: scns.Images) -> scns.Features:  # when it has learnt: its weights are frozen here
    return scns.Features(*Teacher(model).embed(images))


def learn(name: str, model: nn.Module, method: nn.Module, told: scns.Features | None = None) -> None:
    optimizer = torch.optim.Adam([*model.parameters(), *method.parameters()], lr=2e-3)
    for epoch in range(1, 21):
        method.begin_epoch(epoch, fresh=True)
        for rows in torch.randperm(len(train)).split(64):
            images, labels = normalise(train.take(rows), train.mean, train.std), train.labels[rows]
            batch = scns.Batch(images, labels, rows, torch.zeros_like(rows), torch.tensor(epoch), len(rows))
            seen = model.train()(images, features=True)
            answer = scns.Features(told.logits[rows], told.embedding[rows]) if told else None
            optimizer.zero_grad()
            sum(method(batch, seen, answer).values()).backward()
            optimizer.step()
            method.after_step(batch, seen, answer)
    print(f"{name}: {100 * (look(model, test).logits.argmax(1) == test.labels).float().mean():.1f} % on test")


torch.manual_seed(0)
folder = sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
train, test = (scns.datasets.load("folder", folder, split, size=32) for split in ("train", "test"))
teacher, alone, student = network(32), network(8), network(8)
large, small = Shapes(train.classes, 128), Shapes(train.classes, 32)  # classes, width of the embedding
learn("teacher", teacher, scns.methods.build("ce", scns.methods.Setting(train.labels, large)))
learn("student alone", alone, scns.methods.build("ce", scns.methods.Setting(train.labels, small)))
told = look(teacher, train)
objective = scns.methods.build("infonce", scns.methods.Setting(train.labels, small, large), kld=0.9)
learn("student of the teacher", student, objective, told)
torch.save(student.state_dict(), "student.pth")
