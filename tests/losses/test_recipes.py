"""Every line of docs/recipes.md, evaluated as it is written, against the dense formula in value and gradient."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import antipodes
from antipodes.candidates.queue import Queue
from tests.cases import every

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
LINES = dict(re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|", PAGE.read_text(), flags=re.MULTILINE))
B, K, D, N = 6, 2, 7, 40
NEVER = -torch.inf


def scene() -> dict[str, Any]:
    """What the lines of the page use, by the names that they have there."""
    generator = torch.Generator().manual_seed(0)

    def vectors(*shape: int) -> Tensor:
        return torch.randn(*shape, D, generator=generator, dtype=torch.float64).requires_grad_()

    queue = Queue(5, D).double()
    queue.push(vectors(4).detach(), torch.tensor([50, 1, 51, 52]))
    users, items = torch.randint(0, 4, (2, 30), generator=generator)
    names: dict[str, Any] = {
        **{name: vectors(B) for name in ("q", "d", "image", "text", "z1", "z2", "k", "u", "v")},
        "h": vectors(B, K),
        **{name: F.normalize(vectors(B).detach(), dim=-1) for name in ("gq", "gd")},
        "gh": F.normalize(vectors(B, K).detach(), dim=-1),
        "ids": torch.arange(B),
        "rows": torch.arange(B) + 3,
        "groups": torch.arange(N) // 2,
        "labels": torch.arange(N) % 3,
        "n": N,
        "queries": ["a", "b", "c", "a", "e", "f"],
        "documents": ["u", "v", "w", "x", "v", "z"],
        "users": users,
        "items": items,
        "user_ids": torch.tensor([0, 1, 2, 3, 0, 2]),
        "item_ids": torch.tensor([0, 1, 2, 3, 2, 1]),
        "log_q": torch.linspace(-3, -1, B, dtype=torch.float64),
        "logit_scale": torch.tensor(14.0, dtype=torch.float64, requires_grad=True),
        "queue": queue,
    }
    names["d"] = (names["d"].detach() + names["q"].detach()).requires_grad_()
    return names


def cos(a: Tensor, b: Tensor) -> Tensor:
    return F.normalize(a.reshape(-1, D), dim=1) @ F.normalize(b.reshape(-1, D), dim=1).T


def nll(logits: Tensor, keep: Tensor) -> Tensor:
    """Cross entropy with the positives on the diagonal, over what is kept and the positives."""
    own = torch.zeros_like(keep)
    own[torch.arange(len(keep)), torch.arange(len(keep))] = True
    return (logits.masked_fill(~(keep | own), NEVER).logsumexp(1) - logits.diagonal()).mean()


OTHERS = ~torch.eye(B, dtype=torch.bool)
EVERY = torch.ones(B, B * K, dtype=torch.bool)


def mnrl(x: dict[str, Any], tau: float = 0.05) -> Tensor:
    logits = torch.cat((cos(x["q"], x["d"]), cos(x["q"], x["h"])), 1) / tau
    return F.cross_entropy(logits, torch.arange(B))


def both_directions(a: Tensor, b: Tensor, tau: float | Tensor) -> Tensor:
    logits = cos(a, b) / tau
    return (F.cross_entropy(logits, torch.arange(B)) + F.cross_entropy(logits.T, torch.arange(B))) / 2


def own_only(x: dict[str, Any]) -> Tensor:
    given = (F.normalize(x["q"], dim=1)[:, None] * F.normalize(x["h"], dim=2)).sum(2)
    logits = torch.cat((F.cosine_similarity(x["q"], x["d"])[:, None], given), 1) / 0.05
    return F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64))


def gte(x: dict[str, Any]) -> Tensor:
    q, d = x["q"], x["d"]
    blocks = (cos(q, d), cos(q, q).masked_fill(~OTHERS, NEVER), cos(d, q), cos(d, d).masked_fill(~OTHERS, NEVER))
    return F.cross_entropy(torch.cat(blocks, 1) / 0.01, torch.arange(B))


def gist(x: dict[str, Any], margin: float = 0.0, relative: bool = False) -> Tensor:
    pairs = (("q", "d"), ("q", "q"), ("d", "d"), ("q", "h"))
    blocks = torch.cat([cos(x[a], x[b]) for a, b in pairs], 1)
    seen = torch.cat([cos(x["g" + a], x["g" + b]) for a, b in pairs], 1)
    bound = seen.diagonal()
    bound = bound - margin * bound.abs() if relative else bound - margin
    return nll(blocks / 0.01, (seen <= bound[:, None]) & torch.cat((OTHERS, OTHERS, OTHERS, EVERY), 1))


def qwen3(x: dict[str, Any]) -> Tensor:
    q, d, h = x["q"], x["d"], x["h"]
    number = {text: place for place, text in enumerate(dict.fromkeys(x["queries"] + x["documents"]))}
    query, document = (torch.tensor([number[text] for text in x[name]]) for name in ("queries", "documents"))
    others = (query[:, None] != query) & (document[:, None] != document)
    bound = F.cosine_similarity(q, d).detach()[:, None] + 0.1
    own = torch.arange(B * K) // K == torch.arange(B)[:, None]
    parts = [
        (cos(q, d), others & (cos(q, d) <= bound)),
        (cos(q, h), cos(q, h) <= bound),
        (cos(q, q), others & (cos(q, q) <= bound)),
        (cos(d, d), others),
        (cos(d, h), ~own),
    ]
    logits, keep = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    return nll(logits / 0.02, keep)


def nv_retriever(x: dict[str, Any]) -> Tensor:
    s = torch.cat((cos(x["q"], x["d"]), cos(x["q"], x["h"])), 1)
    bound = s.diagonal().detach()
    keep = s <= (bound - 0.05 * bound.abs())[:, None]
    return nll(s / 0.05, keep & torch.cat((OTHERS, EVERY), 1))


def rlhn(x: dict[str, Any]) -> Tensor:
    s = torch.cat((cos(x["q"], x["d"]), cos(x["q"], x["h"])), 1)
    group = x["groups"][x["rows"]]
    positives = torch.cat((group[:, None] == group, torch.zeros_like(EVERY)), 1)
    mean = s.masked_fill(~positives, 0.0).sum(1) / positives.sum(1)
    return ((s / 0.05).logsumexp(1) - mean / 0.05).mean()


def hardness(x: dict[str, Any], strength: float, on_given: bool) -> Tensor:
    s = torch.cat((cos(x["q"], x["d"]), cos(x["q"], x["h"])), 1)
    own = torch.cat((torch.zeros(B, B, dtype=torch.bool), torch.arange(B * K) // K == torch.arange(B)[:, None]), 1)
    on = own if on_given else torch.cat((OTHERS, torch.zeros_like(EVERY)), 1)
    logits = s / 0.05 + strength * s.detach() * on
    return F.cross_entropy(logits if on_given else logits[:, :B], torch.arange(B))


def two_views(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The similarities of all views, and which view is the positive of each."""
    views = torch.cat((x["z1"], x["z2"]))
    return cos(views, views).masked_fill(torch.eye(2 * B, dtype=torch.bool), NEVER), torch.arange(2 * B).roll(B)


def nt_xent(x: dict[str, Any], decoupled: bool = False) -> Tensor:
    s, positive = two_views(x)
    rows = torch.arange(2 * B)
    logits = s / 0.5
    if not decoupled:
        return F.cross_entropy(logits, positive)
    rest = logits.masked_fill(F.one_hot(positive, 2 * B).bool(), NEVER)
    return (rest.logsumexp(1) - logits[rows, positive]).mean()


def moco(x: dict[str, Any]) -> Tensor:
    ids = x["queue"].ids
    keep = (ids >= 0) & (ids != x["ids"][:, None])
    rest = (cos(x["q"], x["queue"].keys) / 0.07).masked_fill(~keep, NEVER)
    logits = torch.cat((F.cosine_similarity(x["q"], x["k"])[:, None] / 0.07, rest), 1)
    return F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64))


def supcon(x: dict[str, Any], inside: bool = False, views: int = 2) -> Tensor:
    z = torch.cat((x["z1"], x["z2"])[:views])
    labels = x["labels"][:B].repeat(views)
    alone = torch.eye(len(z), dtype=torch.bool)
    logits = (cos(z, z) / 0.1).masked_fill(alone, NEVER)
    same = (labels[:, None] == labels) & ~alone
    if inside:
        return (logits.logsumexp(1) - logits.masked_fill(~same, NEVER).logsumexp(1)).mean()
    return (logits.logsumexp(1) - logits.masked_fill(~same, 0.0).sum(1) / same.sum(1)).mean()


def sogclr(x: dict[str, Any]) -> Tensor:
    """The first visit of every sample: u is its own mean over both views."""
    s, positive = two_views(x)
    rows = torch.arange(2 * B)
    rest = (s / 0.1).exp().masked_fill(F.one_hot(positive, 2 * B).bool(), 0.0)
    g = rest.sum(1) / (2 * B - 2)
    u = ((g[:B] + g[B:]) / 2).detach().repeat(2)
    return (0.1 * g / u - s[rows, positive]).mean()


def siglip(x: dict[str, Any]) -> Tensor:
    z = cos(x["image"], x["text"]) / 0.1 - 10.0
    return F.softplus(torch.where(OTHERS, z, -z)).sum(1).mean()


def two_towers(x: dict[str, Any]) -> Tensor:
    history = set(zip(x["users"].tolist(), x["items"].tolist(), strict=True))
    user, item = x["user_ids"], x["item_ids"]
    known = torch.tensor([[(int(a), int(b)) in history for b in item] for a in user])
    keep = (user[:, None] != user) & (item[:, None] != item) & ~known
    assert 0 < (OTHERS & ~keep).sum() < OTHERS.sum()
    return nll(cos(x["u"], x["v"]) / 0.1 - x["log_q"], keep)


DENSE: dict[str, Callable[[dict[str, Any]], Tensor]] = {
    "MNRL": mnrl,
    "MNRL, symmetric": lambda x: both_directions(x["q"], x["d"], 0.05),
    "own negatives only": own_only,
    "GTE": gte,
    "GIST": gist,
    "GIST, absolute margin": lambda x: gist(x, 0.1),
    "GIST, relative margin": lambda x: gist(x, 0.05, relative=True),
    "Qwen3": qwen3,
    "NV-Retriever": nv_retriever,
    "RLHN": rlhn,
    "EmbeddingGemma": lambda x: hardness(x, 5.0, on_given=True),
    "LLaVE": lambda x: hardness(x, 9.0, on_given=False),
    "SimCSE": lambda x: F.cross_entropy(cos(x["z1"], x["z2"]) / 0.05, torch.arange(B)),
    "dot products": lambda x: F.cross_entropy(
        torch.cat((x["q"] @ x["d"].T, x["q"] @ x["h"].flatten(0, 1).T), 1), torch.arange(B)
    ),
    "CLIP": lambda x: both_directions(x["image"], x["text"], 0.07),
    "CLIP, temperature of the model": lambda x: both_directions(x["image"], x["text"], 1 / x["logit_scale"]),
    "SigLIP": siglip,
    "NT-Xent": nt_xent,
    "decoupled": lambda x: nt_xent(x, decoupled=True),
    "MoCo": moco,
    "SupCon": supcon,
    "SupCon, inside": lambda x: supcon(x, inside=True),
    "SupCon, one view": lambda x: supcon(x, views=1),
    "SogCLR": sogclr,
    "two towers": two_towers,
}


def test_every_line_has_a_formula() -> None:
    assert set(LINES) == set(DENSE)


@every("name", DENSE)
def test_a_line_equals_its_formula(name: str) -> None:
    x = scene()
    loss = eval(LINES[name], {**vars(antipodes), **{each: getattr(antipodes, each) for each in antipodes.__all__}, **x})
    expected = DENSE[name](x)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)  # learned temperatures are float32
    wanted = [each for each in x.values() if isinstance(each, Tensor) and each.requires_grad]
    ours, theirs = (torch.autograd.grad(each, wanted, allow_unused=True) for each in (loss, expected))
    assert any(each is not None for each in ours)
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None and mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)
        else:
            assert all(each is None or not each.any() for each in (mine, other))
