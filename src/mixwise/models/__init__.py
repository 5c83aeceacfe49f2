"""Models to train: plain `nn.Module` factories. None has BatchNorm, so none has buffers."""

from mixwise.models.basic import build, logistic_regression, mlp, seeded, small_cnn
from mixwise.models.features import with_features
from mixwise.models.freezing import freeze
from mixwise.models.hugging_face import ImageClassifier, TextClassifier, image_classifier, text_classifier
from mixwise.models.resnet import EvoNormS0, resnet18, resnet20

__all__ = [
    "EvoNormS0", "ImageClassifier", "TextClassifier", "build", "freeze", "image_classifier", "logistic_regression",
    "mlp", "resnet18", "resnet20", "seeded", "small_cnn", "text_classifier", "with_features",
]  # fmt: skip
