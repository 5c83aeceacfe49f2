"""Datasets, their partitions over nodes, and batches."""

from mixwise.data import partition
from mixwise.data.ag_news import ag_news
from mixwise.data.dataset import Dataset, Samples, Splits, from_torch, holdout
from mixwise.data.fields import Fields
from mixwise.data.files import data_folder
from mixwise.data.hub import hugging_face
from mixwise.data.images import ImageForm, ImageSamples, ImageSource, image_folder
from mixwise.data.partition import NodeBatches, Partition
from mixwise.data.standard import cifar10, digits, fashion_mnist, gaussian_mixture, mnist
from mixwise.data.streams import LabelStreams, StreamBatches
from mixwise.data.tokens import FeatureSamples, TokenSamples, tokenized
from mixwise.data.transforms import FlipsAndCrops, averaged_down, normalized, random_crops, random_flips

__all__ = [
    "Dataset", "FeatureSamples", "Fields", "FlipsAndCrops", "ImageForm", "ImageSamples", "ImageSource",
    "LabelStreams", "NodeBatches", "Partition", "Samples", "Splits", "StreamBatches", "TokenSamples", "ag_news",
    "averaged_down", "cifar10", "data_folder", "digits", "fashion_mnist", "from_torch",
    "gaussian_mixture", "holdout", "hugging_face",
    "image_folder", "mnist", "normalized", "partition", "random_crops", "random_flips", "tokenized",
]  # fmt: skip
