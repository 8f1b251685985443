import pytest
import torch

from antipodes.encoders import create


def test_vectors_pass_as_they_are():
    encoder = create("identity", in_features=5)
    vectors = torch.rand(3, 5)
    assert torch.equal(encoder(vectors), vectors)
    assert (encoder.num_features, encoder.modality) == (5, "vector")


def test_a_network_of_linear_layers_and_gelu():
    encoder = create("mlp", in_features=5, hidden=7, out_features=3)
    assert encoder.num_features == 3
    vectors = torch.rand(4, 5)
    first, second = encoder.layers[0], encoder.layers[2]
    expected = torch.nn.functional.gelu(vectors @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(encoder(vectors), expected)
    assert len(create("mlp", in_features=5, layers=1).layers) == 1


def test_wrong_sizes_are_refused():
    for name in ["identity", "mlp"]:
        with pytest.raises(ValueError, match="at least 1"):
            create(name, in_features=0)
        with pytest.raises(ValueError, match=r"vectors must be \(B, 5\) for this encoder, got \(2, 4\)"):
            create(name, in_features=5)(torch.rand(2, 4))
