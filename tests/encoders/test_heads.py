from itertools import pairwise

import pytest
import torch
from torch import nn

from antipodes.encoders.export import export_head, load_head
from antipodes.encoders.heads import build_head, describe_head, embedding_length, head


def kinds(module):
    return [type(layer) for layer in module]


def test_layers_come_in_the_papers_order():
    for kind, options, expected in [
        ("linear", {"batch_norm": True}, [nn.Linear]),
        ("mlp2", {}, [nn.Linear, nn.ReLU, nn.Linear]),
        ("mlp2", {"batch_norm": True}, [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]),
        (
            "mlp3",
            {"batch_norm": True, "centred": True},
            [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear, nn.BatchNorm1d],
        ),
    ]:
        module = head(kind, 6, 5, 4, **options)
        assert kinds(module) == expected
        assert module(torch.rand(3, 6)).shape == (3, 4)
        linear = [layer for layer in module if isinstance(layer, nn.Linear)]
        widths = [6] + [5] * (len(linear) - 1) + [4]
        assert [(layer.in_features, layer.out_features) for layer in linear] == list(pairwise(widths))


def test_only_a_layer_without_batch_norm_has_a_bias():
    module = head("mlp3", 6, 5, 4, batch_norm=True)
    assert [layer.bias is not None for layer in module if isinstance(layer, nn.Linear)] == [False, False, True]
    assert head("linear", 6, 5, 4)[0].bias is not None
    assert head("linear", 6, 5, 4, centred=True)[0].bias is None


def test_a_centred_head_opens_the_cone_of_relu_features():
    torch.manual_seed(0)
    features = torch.randn(256, 32).relu() + 1
    cosines = {}
    for centred in (False, True):
        embeddings = nn.functional.normalize(head("linear", 32, 32, 16, centred=centred)(features), dim=1)
        cosines[centred] = ((embeddings @ embeddings.T).sum() - 256).item() / (256 * 255)
    assert cosines[False] > 0.5
    assert abs(cosines[True]) < 0.02
    assert list(head("linear", 6, 5, 4, centred=True)[1].parameters()) == []  # nothing can close it again


def test_unknown_heads_and_sizes_are_refused():
    with pytest.raises(ValueError, match="unknown head 'mlp4': choose one of linear, mlp2, mlp3"):
        head("mlp4", 6, 5, 4)
    with pytest.raises(ValueError, match="sizes must be at least 1, got 6, 5, 0"):
        head("mlp2", 6, 5, 0)


def test_a_head_is_built_again_from_its_description(tmp_path):
    for built in [
        head("linear", 4, 1, 2),
        head("mlp2", 4, 3, 2, batch_norm=True, centred=True),
        head("mlp3", 4, 3, 2, activation="gelu"),
    ]:
        built(torch.rand(5, 4))  # batch statistics of its own
        export_head(built, tmp_path / "head.safetensors")
        again = load_head(tmp_path / "head.safetensors").eval()
        features = torch.rand(3, 4)
        assert torch.equal(again(features), built.eval()(features))
        assert embedding_length(again, 4) == 2
        export_head(again, tmp_path / "again.safetensors")
        assert (tmp_path / "head.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_no_head_and_strange_heads():
    assert describe_head(nn.Identity()) == []
    assert embedding_length(build_head([]), 7) == 7
    with pytest.raises(ValueError, match="a head with a Tanh cannot be described"):
        describe_head(nn.Sequential(nn.Tanh()))
    with pytest.raises(ValueError, match="unknown layer 'tanh'"):
        build_head([["tanh"]])
