"""EfficientNet-Lite0 by onnxruntime, which runs it nearly three times as fast as torch.

The network is written as an ONNX graph node by node, which takes a tenth of a second; tracing and exporting it takes
several. onnxruntime joins convolutions, batch norms and activations. The features are compared with torch's before they
are used, and torch computes them where onnx or onnxruntime is missing, or where they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.encoders.efficientnet import EfficientNetLite0, InvertedResidual, SamePaddingConv2d
from antipodes.encoders.loading import LoadedEncoder, normalise_images

TOLERANCE = 1e-4
"""Largest difference from torch's features, relative to the largest of them."""

Features = Callable[[Tensor], Tensor]
"""Images (B, 3, H, H) uint8 to features (B, F)."""


def fast_features(loaded: LoadedEncoder) -> tuple[Features, bool]:
    """The features of an encoder of images, computed as fast as possible, and whether onnxruntime computes them.

    The function may be called by several threads at a time; every call uses one core.

    Example:
        >>> from antipodes.encoders.encoder import Preprocessing
        >>> loaded = LoadedEncoder([EfficientNetLite0(pretrained=False)], [Preprocessing(32)])
        >>> features, _ = fast_features(loaded)
        >>> features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 1280])
    """
    network = loaded.encoders[0]
    preprocessing = loaded.preprocessing[0]
    is_plain = len(loaded.encoders) == 1 and not len(loaded.network.heads) and preprocessing is not None
    if not is_plain or not isinstance(network, EfficientNetLite0) or loaded.network.colours != ["rgb"]:
        return loaded.features, False
    assert preprocessing is not None
    try:
        session = _session(network, preprocessing.size)
    except Exception:  # not installed, or another version of the operators: both raise their own classes
        return loaded.features, False

    def features(images: Tensor) -> Tensor:
        inputs = normalise_images(images, preprocessing).numpy()
        return torch.from_numpy(session.run(None, {"images": inputs})[0])

    noise = torch.randint(256, (2, 3, loaded.size, loaded.size), generator=torch.Generator().manual_seed(0))
    expected, found = loaded.features(noise.byte()), features(noise.byte())
    if not float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max().clamp(min=1e-6)):
        return loaded.features, False
    return features, True


def _session(network: EfficientNetLite0, size: int) -> Any:
    """Onnxruntime's session of the network for images of one size."""
    import onnxruntime
    from onnx import TensorProto, helper

    graph = _Graph(size)
    value = graph.block("images", network._conv_stem, network._bn0)
    for block in network._blocks:
        assert isinstance(block, InvertedResidual)
        before = value
        if block.expands:
            value = graph.block(value, block._expand_conv, block._bn0)
        value = graph.block(value, block._depthwise_conv, block._bn1)
        value = graph.block(value, block._project_conv, block._bn2, bounded=False)
        if block.residual:
            value = graph.add("Add", [value, before])
    value = graph.block(value, network._conv_head, network._bn1)
    graph.add("Flatten", [graph.add("GlobalAveragePool", [value])], output="features")

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", network.in_channels, size, size])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", network.num_features])
    whole = helper.make_graph(graph.nodes, "efficientnet-lite0", [images], [features], graph.constants)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the threads that call it are the parallelism
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class _Graph:
    """Collects the nodes and constants of an ONNX graph of square feature maps."""

    def __init__(self, size: int) -> None:
        from onnx import numpy_helper

        self.size = size
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._of_array = numpy_helper.from_array
        self.constant("zero", torch.tensor(0.0))
        self.constant("six", torch.tensor(6.0))

    def constant(self, name: str, value: Tensor) -> str:
        """Add a constant of this name."""
        self.constants.append(self._of_array(value.detach().cpu().contiguous().numpy(), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        name = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def block(self, value: str, convolution: nn.Module, norm: nn.Module, bounded: bool = True) -> str:
        """Add a convolution with TensorFlow's padding, its batch norm, and ReLU6 if `bounded`."""
        assert isinstance(convolution, SamePaddingConv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        kernel, stride = convolution.kernel_size[0], convolution.stride[0]
        output = -(-self.size // stride)
        padding = max((output - 1) * stride + kernel - self.size, 0)
        before, after = padding // 2, padding - padding // 2
        self.size = output
        number = len(self.nodes)
        value = self.add(
            "Conv",
            [value, self.constant(f"weight{number}", convolution.weight)],
            group=convolution.groups,
            kernel_shape=[kernel, kernel],
            pads=[before, before, after, after],
            strides=[stride, stride],
        )
        tensors = {"scale": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "variance": norm.running_var}
        names = [self.constant(f"{name}{number}", tensor) for name, tensor in tensors.items() if tensor is not None]
        value = self.add("BatchNormalization", [value, *names], epsilon=norm.eps)
        return self.add("Clip", [value, "zero", "six"]) if bounded else value
