"""Embedding tables of a store in PyTorch models.

    bags = hps.torch.EmbeddingBagCollection(store, {"C1": "c1", "C2": "c2"})
    optimizer = hps.torch.Optimizer([bags], lr=0.05)
    for features, labels in hps.torch.PrefetchLoader(loader, store, keys_of):
        loss = criterion(model(bags(features)), labels)
        optimizer.zero_grad()
        loss.backward()                                  # fills the gradients of the rows
        optimizer.step()                                 # pushes them: one call to the store
    hps.torch.save(store, step, model, [optimizer, dense_optimizer])   # one atomic cut

A forward pulls the distinct rows of its batch into a leaf tensor over the lease's own buffer;
torch's own `embedding_bag` pools it, so autograd, gradient clipping and mixed precision work as
for `nn.EmbeddingBag`. The update rule is that of the table. Torch 1.13 or later; guide:
docs/PYTHON.md.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError("hps.torch needs PyTorch: pip install torch, or hps[torch]") from _error

from ._keyed import KeyedTensor
from ._loader import PrefetchLoader
from ._modules import EmbeddingBag, EmbeddingBagCollection
from ._optimizer import Optimizer
from ._saving import load, save
from ._state import StoreState

__all__ = [
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "KeyedTensor",
    "Optimizer",
    "PrefetchLoader",
    "StoreState",
    "load",
    "save",
]
