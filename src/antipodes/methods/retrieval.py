"""Retrieval: queries against the documents of the batch and the given negatives."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from antipodes.identity import NEGATIVE_INPUT
from antipodes.losses import Loss, OneWay
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, TowerPlan, Towers


class Retrieval(Method):
    """A query finds its document among those of the batch and the given negatives (multiple negatives ranking).

    1. One encoder embeds queries and documents, or one each (`--encoders.query`, `--encoders.document`).
    2. The anchor is the query; candidates are the documents and given negatives of all pairs, from all ranks.
    3. What has the same document, or belongs to the same query, is no negative: equal texts are one thing. The policy
       `known` leaves out every pair that the training data lists, also where it is not in the batch.

    Args:
        network: Two towers, `query` and `document` for pairs of texts, which may be one.
        loss_fn: The loss, with its policy.
        input_ids: The identity of queries, documents and given negatives by input and row, as the data has it.
    """

    run = {
        "head": {"kind": "none"},
        "loss": {"temperature": 0.05},
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "warmup": 0.1,
        "clip_gradient": 1.0,
        "batch_size": 64,
        "epochs": 3,
    }
    views = 1

    def __init__(self, network: Towers, loss_fn: Loss, input_ids: Mapping[str, Tensor] | None = None) -> None:
        query, document = network.names()
        super().__init__(network, {f"{query}_to_{document}": loss_fn})
        self._pairs = (OneWay(loss_fn),)  # in a tuple, so that its loss is registered once, as the method's
        if self.supports:
            raise ValueError("retrieval has no support views: choose another policy")
        for name, ids in (input_ids or {}).items():
            self.register_buffer(f"ids_{name}", ids, persistent=False)
        self._identified = frozenset(input_ids or ())

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """One tower for the first input and one for the second, which are the same where both are of one modality."""
        (query, *others) = (name for name in modalities if not name.startswith(NEGATIVE_INPUT))
        if len(others) != 1:
            raise ValueError(
                f"retrieval compares two inputs of every sample and the data has {', '.join(modalities)}: give a table "
                "with columns query and document"
            )
        document, given = others[0], tuple(name for name in modalities if name.startswith(NEGATIVE_INPUT))
        shares = query if modalities[query] == modalities[document] else None
        return {
            query: TowerPlan(query, modalities[query]),
            document: TowerPlan(document, modalities[document], further=given, shares=shares),
        }

    def candidate_tower(self, direction: str) -> str:
        """Return the tower of the documents."""
        return self.network.names()[1]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the mean loss of this rank's queries.

        1. The towers embed queries (b, D), documents (b, D) and K given negatives of every query (b, K, D).
        2. Ids say which of them are the same thing; a row with fewer than K negatives is padded with id -1.
        """
        query, document = self.network.names()
        plan = self.network.plans[document]
        embeddings = network({query: batch[query].views[0], document: [batch[name].views[0] for name in plan.inputs]})
        queries, (documents, *given) = embeddings[query], embeddings[document].chunk(len(plan.inputs))
        ids = {name: self.get_buffer(f"ids_{name}")[batch.rows] for name in self._identified}
        value: Tensor = self._pairs[0](
            queries,
            documents,
            (ids[query], ids[document]) if ids else batch.ids,
            hard_negatives=torch.stack(given, 1) if given else None,
            hard_negative_ids=torch.stack([ids[name] for name in plan.further], 1) if given and ids else None,
            rows=batch.rows,
            progress=progress,
        )
        return value
