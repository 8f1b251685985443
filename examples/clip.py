"""Images and captions, both ways, with FastCLIP's learned temperature: `python examples/clip.py`."""

import torch
from torch import nn

from antipodes import GlobalContrastive, GloFND, Temperature, TwoWay


def main(n: int = 400, batch_size: int = 50, steps: int = 24) -> float:
    """Train two small towers and return the last loss."""
    torch.manual_seed(0)
    scenes = torch.randn(n, 24)
    images, captions = scenes @ torch.randn(24, 64), scenes @ torch.randn(24, 40)
    image_tower, text_tower = nn.Linear(64, 16), nn.Linear(40, 16)
    temperature = Temperature(0.07, learnable=True, floor=0.01, form="linear")
    clip = TwoWay(
        GlobalContrastive(n, temperature, gamma=0.8, rho=6.5, negatives=GloFND(n, alpha=0.005)),
        names=("image_to_text", "text_to_image"),
    )
    optimizer = torch.optim.Adam([*image_tower.parameters(), *text_tower.parameters()], lr=1e-2)
    optimizer.add_param_group(temperature.parameter_group(lr=2e-4))
    loss = torch.tensor(0.0)
    for step in range(steps):
        ids = torch.randperm(n)[:batch_size]
        loss = clip(image_tower(images[ids]), text_tower(captions[ids]), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[-1]["lr"] = temperature.learning_rate(2e-4)
        if step % 8 == 7:
            value = clip.stats["image_to_text/value"]
            print(f"step {step}: loss {loss.item():.3f}, value {value:.3f}, temperature {temperature.current():.4f}")
    return loss.item()


if __name__ == "__main__":
    main()
