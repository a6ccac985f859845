"""Residual networks for small images: CIFAR ResNet, its pre-activation form, and Wide ResNet."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class SubsampleAndPad(nn.Module):
    """Parameter-free shortcut (option A): every ``stride``-th pixel, new channels filled with zeros on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        new = outputs - inputs
        self.padding = (0, 0, 0, 0, new // 2, new - new // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Smaller, deeper ``x``."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class PostActivationBlock(nn.Module):
    """conv-BN-ReLU-conv-BN, added to the shortcut, ReLU (He et al. 2016, arXiv:1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = _conv3(outputs, outputs), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else SubsampleAndPad(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Residual step."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """BN-ReLU-conv twice; the shortcut is a 1×1 convolution of the activated input where the shape changes
    (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _conv3(inputs, outputs, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), _conv3(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Residual step."""
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class SmallImageResNet(nn.Module):
    """A 3×3 stem and three stages of equally many residual blocks, pooled and classified by ``fc``.

    Args:
        block: Residual block; pre-activation ones get a closing BN-ReLU.
        blocks: Blocks per stage.
        widths: Channels of the stem and of the three stages.
        in_channels: Colour channels of the input.
    """

    def __init__(
        self,
        block: type[PostActivationBlock | PreActivationBlock],
        blocks: int,
        widths: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        stem, *stages = widths
        post = block is PostActivationBlock
        self.stem = nn.Sequential(_conv3(in_channels, stem), *([nn.BatchNorm2d(stem), nn.ReLU()] if post else []))
        layers: list[nn.Module] = []
        inputs = stem
        for stage, outputs in enumerate(stages):
            for position in range(blocks):
                layers.append(block(inputs, outputs, 2 if stage > 0 and position == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.last = nn.Identity() if post else nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image batch (N, C, H, W)."""
        features = self.last(self.blocks(self.stem(x))).mean(dim=(2, 3))
        logits: Tensor = self.fc(features)
        return logits


def resnet(depth: int, num_classes: int, in_channels: int = 3) -> SmallImageResNet:
    """CIFAR ResNet-``depth`` (6n + 2 layers, 64 features)."""
    return SmallImageResNet(PostActivationBlock, (depth - 2) // 6, (16, 16, 32, 64), num_classes, in_channels)


def preact(depth: int, num_classes: int, in_channels: int = 3) -> SmallImageResNet:
    """CIFAR pre-activation ResNet-``depth`` (6n + 2 layers, 64 features)."""
    return SmallImageResNet(PreActivationBlock, (depth - 2) // 6, (16, 16, 32, 64), num_classes, in_channels)


def wide_resnet(depth: int, width: int, num_classes: int, in_channels: int = 3) -> SmallImageResNet:
    """Wide ResNet-``depth``-``width`` (6n + 4 layers, 64 · width features; arXiv:1605.07146, without dropout)."""
    widths = (16, 16 * width, 32 * width, 64 * width)
    return SmallImageResNet(PreActivationBlock, (depth - 4) // 6, widths, num_classes, in_channels)
