"""The number of tokens in a step, by the shapes in the graph of its loss."""

from __future__ import annotations

from ranks import Trained, needs, trains

pytestmark = needs("torch")

STEPS = """
import time, torch
from torch.nn import functional as F
embedding, head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], 0.1)

def cross_entropy(batch, length):
    ids = torch.zeros(batch, length, dtype=torch.long)
    return F.cross_entropy(head(embedding(ids)).view(-1, 50), ids.view(-1))

def log_probabilities(batch, length):
    ids = torch.zeros(batch, length, dtype=torch.long)
    logits = head(embedding(ids))
    chosen = torch.gather(logits, -1, ids.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(logits, -1)
    ratio = torch.exp(chosen - chosen.detach())
    return -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()

def hidden(batch, length):
    return embedding(torch.zeros(batch, length, dtype=torch.long)).square().mean()

def step(*losses):
    for loss in losses:
        (loss / len(losses)).backward()
    optimizer.step()
    optimizer.zero_grad()

step(cross_entropy(1, 1))
step(cross_entropy(4, 16))
step(cross_entropy(4, 16), cross_entropy(4, 20))
step(log_probabilities(2, 10))
step(hidden(2, 10))
step(cross_entropy(4, 16), hidden(2, 10))
"""


@trains(STEPS)
def test_tokens_of_a_step_include_all_its_parts(trained: list[Trained]) -> None:
    (loop,) = trained
    records = [record.values for record in loop.ranks.records() if "step" in record.values]
    found = {int(values["step"]): values.get("tokens") for values in records}
    assert found == {1: None, 2: 64.0, 3: 144.0, 4: 20.0, 5: None, 6: None}
