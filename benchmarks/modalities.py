"""What two modalities ask of the kernel: both directions from one product, the sigmoid, and low temperatures.

Times are process CPU time of forward + backward, one thread, the best of several interleaved rounds.

    python benchmarks/modalities.py [--quick]

The last line of the output is JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial

import torch
from contrast import DIMENSIONS, best_times, show
from torch import Tensor
from torch.nn.functional import normalize, softplus

from antipodes.functional.contrast import contrast, contrast_both, sigmoid_sums
from antipodes.functional.rule import Rule


class Modalities:
    """Images and texts of the same samples, a ceiling per direction, and the views of a batch of images alone."""

    def __init__(self, pairs: int) -> None:
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(pairs, DIMENSIONS, generator=generator)
        views = [samples + 0.5 * torch.randn(pairs, DIMENSIONS, generator=generator) for _ in range(2)]
        self.first, self.second = (normalize(each, dim=1).requires_grad_() for each in views)
        self.views = normalize(torch.cat(views), dim=1).requires_grad_()
        self.ids = torch.arange(pairs)
        self.ceiling = Rule(ceiling=torch.full((pairs,), 0.2))
        self.view_ceiling = Rule(ceiling=torch.full((2 * pairs,), 0.2))

    def one(self, anchors: Tensor, candidates: Tensor, rule: Rule, tau: float) -> Tensor:
        """The loss of one direction."""
        ids = {"anchor_ids": self.ids, "candidate_ids": self.ids}
        sums = contrast(anchors, candidates, **ids, temperature=tau, rules=rule)
        return softplus(sums.log_sum - 0.8 / tau).mean()

    def two_calls(self, rule: Rule, tau: float = 0.1) -> None:
        """Both directions, each by itself."""
        (self.one(self.first, self.second, rule, tau) + self.one(self.second, self.first, rule, tau)).backward()

    def both(self, rule: Rule, tau: float = 0.1) -> None:
        """Both directions from one product."""
        rules = {"first_rules": rule, "second_rules": rule}
        ids = {"first_ids": self.ids, "second_ids": self.ids}
        one, other = contrast_both(self.first, self.second, **ids, temperature=tau, **rules)
        (softplus(one.log_sum - 0.8 / tau).mean() + softplus(other.log_sum - 0.8 / tau).mean()).backward()

    def softmax(self, rule: Rule, tau: float = 0.1) -> None:
        """One direction with a softmax."""
        self.one(self.first, self.second, rule, tau).backward()

    def sigmoid(self, rule: Rule) -> None:
        """One direction with the sigmoid."""
        ids = {"anchor_ids": self.ids, "candidate_ids": self.ids}
        sums = sigmoid_sums(self.first, self.second, **ids, temperature=0.1, bias=-10.0, rules=rule)
        sums.loss_sum.mean().backward()

    def batch(self, rule: Rule, tau: float) -> None:
        """The views of a batch, which are their own candidates."""
        sums = contrast(self.views, anchor_ids=self.ids.repeat(2), temperature=tau, rules=rule)
        softplus(sums.log_sum - 0.8 / tau).mean().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description="Two modalities: both directions, the sigmoid, low temperatures.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    rows = []
    quick = parser.parse_args().quick
    for pairs in (512, 1024) if quick else (512, 1024, 2048, 4096):
        scene = Modalities(pairs)
        none = Rule()
        runs: dict[str, Callable[[], None]] = {
            "two calls": partial(scene.two_calls, none),
            "both": partial(scene.both, none),
            "two calls, ceiling": partial(scene.two_calls, scene.ceiling),
            "both, ceiling": partial(scene.both, scene.ceiling),
            "softmax": partial(scene.softmax, none),
            "sigmoid": partial(scene.sigmoid, none),
            "softmax, ceiling": partial(scene.softmax, scene.ceiling),
            "sigmoid, ceiling": partial(scene.sigmoid, scene.ceiling),
        }
        for kind, rule, views in (("none", none, none), ("ceiling", scene.ceiling, scene.view_ceiling)):
            for tau in (0.1, 0.01, 0.005):
                runs[f"batch {kind} {tau}"] = partial(scene.batch, views, tau)
                runs[f"both {kind} {tau}"] = partial(scene.both, rule, tau)
        times = best_times(runs, 5 if pairs > 1024 else 15, calls=max(1, 2048 // pairs))
        compared = [(after, before) for after, before in (("both", "two calls"), ("sigmoid", "softmax"))]
        compared += [(f"{after}, ceiling", f"{before}, ceiling") for after, before in compared]
        for case in ("batch", "both"):
            for kind in ("none", "ceiling"):
                compared += [(f"{case} {kind} {tau}", f"{case} {kind} 0.1") for tau in (0.01, 0.005)]
        for after, before in compared:
            ratio = times[after] / times[before]
            ratios[f"{pairs} {after} / {before}"] = ratio
            rows.append((str(pairs), f"{after} / {before}", f"{1000 * times[after]:.1f}", f"{ratio:.2f}"))
    show("Two modalities, one thread", ("pairs", "what", "ms", "ratio"), rows)
    print()
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
