"""The recipe format: what may stand in a recipe, with types, limits and errors that say what is allowed.

A recipe is a base configuration, named variants that change parts of it, and seeds (docs/recipes.md).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mixwise.experiments.algorithm_config import AlgorithmConfig, PlainAlgorithm
from mixwise.experiments.links_config import LinksConfig
from mixwise.experiments.policy_config import PolicyConfig
from mixwise.experiments.strict import Strict, check_folder_name
from mixwise.experiments.task_config import OptimizerConfig, QuadraticsConfig, ScheduleConfig, TaskConfig

Count = Annotated[int, Field(ge=1, strict=True)]  # strict: true and yes are no numbers of steps
_IN_MEMORY = "0.2.0; rows are always kept in memory, in dtype: delete the key (docs/memory.md has other ways to fit)"


class RunConfig(Strict):
    """Everything that one run needs besides its seed."""

    removed: ClassVar = {
        "rows": ("memory", _IN_MEMORY),
        "rows_dir": (None, _IN_MEMORY),
        "param_dtype": (None, _IN_MEMORY),
    }
    steps: Count | None = None
    epochs: float | None = Field(default=None, gt=0)
    graph: str
    placement: Literal["given", "random", "gme"] | list[int] = "given"
    task: TaskConfig = QuadraticsConfig()
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    algorithm: AlgorithmConfig = PlainAlgorithm(kind="dsgd")
    local_steps: Count = 1
    policy: PolicyConfig
    message_loss: float = Field(default=0.0, ge=0, lt=1)
    links: LinksConfig | None = None
    record_every: Count = 1
    evaluate_every: Count | None = None
    checkpoint_every: Count | None = None
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    data_dir: str | None = None
    model_dir: str | None = None
    tensorboard: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> RunConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give the length of a run as steps or as epochs, and not both")
        if self.epochs is not None and self.task.kind == "quadratics":
            raise ValueError("quadratics have no epochs; give steps")
        return self


class Recipe(Strict):
    """A base configuration, variants of it, and the seeds to run them with; `further` variants run only if named."""

    name: str
    description: str = ""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    window: Count = 1
    metrics: list[str] = Field(min_length=1)
    placements: Literal["distinct"] | None = None
    topologies: dict[str, str] | None = None
    base: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    further: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _names_stay_inside(self) -> Recipe:
        check_folder_name("the recipe name", self.name)
        for topology in self.topologies or {}:
            check_folder_name("topology", topology)
        for variant in (*self.variants, *self.further):
            check_folder_name("variant", variant, nested=True)
            if "." in variant.rpartition("/")[2]:
                raise ValueError(f"variant {variant!r} has a dot, which in an override separates keys; rename it")
        return self

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed is given twice; give each seed once")
        return seeds
