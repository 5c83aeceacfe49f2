"""Tasks, optimizers and schedules as a recipe writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, field_validator
from pydantic import Discriminator as Choose

from mixwise.experiments.strict import Strict, kind_of, unknown


class QuadraticsConfig(Strict):
    """f_i(x) = ‖A_i x + b_i‖²: A_i and b_i at random, or two classes of objectives on even and odd nodes."""

    kind: Literal["quadratics"] = "quadratics"
    classes: Literal["random", "two"] = "random"
    dim: int = Field(default=10, ge=1)
    noise: float = Field(default=0.1, ge=0)


class DataConfig(Strict):
    """A data set, and what is done to it once."""

    kind: Literal[
        "digits", "cifar10", "mnist", "fashion-mnist", "gaussian-mixture", "image-folder", "ag-news", "hugging-face"
    ]  # fmt: skip
    average_down: int = Field(default=1, ge=1)
    normalize: bool = True
    validation: float = Field(default=0.0, ge=0, lt=1)
    test_share: float = Field(default=1.0, gt=0, le=1)
    options: dict[str, Any] = {}


class PartitionConfig(Strict):
    """How the samples are divided over the nodes."""

    kind: Literal["dirichlet", "by-label", "iid"] = "dirichlet"
    alpha: float = Field(default=0.1, gt=0)
    labels_per_node: int = Field(default=2, ge=1)


class ModelConfig(Strict):
    """A model by name, with the options of its factory."""

    kind: str
    options: dict[str, Any] = {}


class ClassificationConfig(Strict):
    """A model trained to classify a data set that is divided over the nodes."""

    kind: Literal["classification"]
    data: DataConfig
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig
    batch: int = Field(default=32, ge=1)
    augment: bool = False
    gradients: Literal["auto", "measure", "loop", "stacked"] = "auto"
    accumulate: int = Field(default=1, ge=1)
    autocast: Literal["bfloat16", "float16"] | None = None
    buffers: Literal["local", "averaged"] = "local"
    evaluate_on: Literal["test", "validation"] = "test"
    train: Literal["all", "head"] | Annotated[int, Field(ge=1)] = "all"
    cache_features: bool | Literal["float16", "float32"] | None = None


def _check_kind(task: Any) -> Any:
    kind = kind_of(task, "quadratics")
    if kind not in ("quadratics", "classification"):
        raise ValueError(unknown("task", kind, ["kind: quadratics", "kind: classification"]))
    return task


TaskConfig = Annotated[
    Annotated[QuadraticsConfig, Tag("kind: quadratics")] | Annotated[ClassificationConfig, Tag("kind: classification")],
    Choose(lambda task: f"kind: {kind_of(task, 'quadratics')}"),
    BeforeValidator(_check_kind),
]


class OptimizerConfig(Strict):
    """A `torch.optim` optimizer; a step size such as 0.3/L is relative to the smoothness L of the task."""

    kind: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"] = "sgd"
    lr: float | str
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    decay_norms_and_biases: bool = True
    clip: float | None = Field(default=None, gt=0)

    @field_validator("lr")
    @classmethod
    def _positive(cls, lr: float | str) -> float | str:
        text = str(lr).removesuffix("/L")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise ValueError("a step size is a positive number, such as 0.01, or one relative to L, such as 0.3/L")
        return f"{text}/L" if str(lr).endswith("/L") else value


class ScheduleConfig(Strict):
    """The learning rate over time; warm-up and decays at shares of the run."""

    warmup: float = Field(default=0.0, ge=0, lt=1)
    warmup_from: float = Field(default=0.0, ge=0, le=1)
    decay_at: list[Annotated[float, Field(gt=0, lt=1)]] = []
    gamma: float = Field(default=0.1, gt=0, le=1)
    cosine: bool = False
