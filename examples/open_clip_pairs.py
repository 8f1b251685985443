"""Train as open_clip does, with captions that share an image: `python examples/open_clip_pairs.py`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipodes import GloFND
from antipodes.integrations.open_clip import ClipLoss


class TwoTowers(nn.Module):
    """What open_clip's models return, by the names that its training hands to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(64, 16), nn.Linear(40, 16)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Tensor, text: Tensor) -> dict[str, Tensor]:
        """Features of length 1, and the scale of the logits."""
        return {
            "image_features": F.normalize(self.image(image), dim=-1),
            "text_features": F.normalize(self.text(text), dim=-1),
            "logit_scale": self.logit_scale.exp(),
        }


def main(scenes: int = 100, captions: int = 4, batch_size: int = 50, steps: int = 40) -> float:
    """Train two small towers and return the last loss."""
    torch.manual_seed(0)
    what = torch.randn(scenes, 24)
    image_of = torch.arange(scenes).repeat_interleave(captions)  # every image has several captions
    images = what @ torch.randn(24, 64)
    texts = (what[image_of] + 0.1 * torch.randn(len(image_of), 24)) @ torch.randn(24, 40)
    model, total = TwoTowers(), torch.tensor(0.0)
    loss = ClipLoss(negatives=GloFND(scenes, alpha=0.01))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        batch = torch.randperm(len(image_of))[:batch_size]
        loss.ids, loss.progress = image_of[batch], step / steps  # captions of one image are no negatives of it
        model_out = model(images[image_of[batch]], texts[batch])
        total = loss(**model_out, output_dict=True)["contrastive_loss"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if step % 10 == 9:
            kept = loss.stats["image_to_text/kept_per_anchor"]
            print(f"step {step}: loss {total.item():.3f}, {kept:.1f} negatives an image")
    return total.item()


if __name__ == "__main__":
    main()
