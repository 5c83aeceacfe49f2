"""Recipes by name or from a file, with `key=value` overrides, become planned runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from mixwise.errors import ConfigError, unknown
from mixwise.experiments.config import Recipe, RunConfig, check_folder_name, validated
from mixwise.storage import parsed_yaml, text

if TYPE_CHECKING:
    from mixwise.experiments.build import Prepared
    from mixwise.network.world import World

# Overrides of the recipe itself; all others go to the runs.
_RECIPE_KEYS = ("seeds", "window", "variants", "topology", "nodes", "name")
_MAX_SEEDS = 10_000
_WRITTEN_BY, _NUMBER = re.compile(r"# mixwise (\d+(?:\.\d+)*)"), re.compile(r"\d+")


class PlannedRun(Protocol):
    """One variant of an experiment: the configuration of a recipe, or your own objects."""

    def prepare(self, seed: int, world: World, *, check: bool = True) -> Prepared:
        """Build the run of a seed; with `check`, a wrong value or combination is an error."""

    def described(self) -> dict[str, Any]:
        """Return the run as config.yaml holds it."""

    def matches(self, written: Mapping[str, Any]) -> bool:
        """Whether config.yaml describes this run."""

    def code(self) -> dict[str, str]:
        """Return checksums of the code of your own that the run uses, by what it is used for."""


@dataclass(frozen=True)
class Experiment:
    """A recipe with its overrides applied: one planned run per variant."""

    recipe: Recipe
    runs: Mapping[str, PlannedRun]
    command: str = ""  # what was typed, for reports

    def __post_init__(self) -> None:
        for run in self.runs:  # every run gets a folder of its name
            check_folder_name("variant", run, nested=True)

    def written_in(self, config: Path) -> bool:
        """Whether a config.yaml describes these runs, however much of the defaults it spells out."""
        found = load_recipe(str(config))
        same = _head(found) == _head(self.recipe) and list(found.variants) == list(self.runs)
        with naming_newer(found._written_by):
            return same and all(run.matches(found.variants[name]) for name, run in self.runs.items())

    def to_yaml(self) -> str:
        """A recipe that gives this experiment again; of your own objects, a description."""
        runs = {name: run.described() for name, run in self.runs.items()}
        whole = {**_head(self.recipe), "variants": runs}
        return str(yaml.dump(whole, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=120))


def _head(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(exclude={"base", "variants", "further", "placements", "topologies"})


class _Readable(yaml.SafeDumper):
    """Writes several lines of source as lines."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Readable.add_representer(str, _Readable.represent_str)


def recipe_names() -> list[str]:
    """The recipes that come with mixwise."""
    folder = resources.files("mixwise.experiments") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def recipe_source(name_or_path: str, *, follow: bool = True) -> str:
    """The YAML of a recipe by its name, or of a file, which may be a symbolic link unless `follow` is false."""
    if name_or_path in recipe_names():
        return (resources.files("mixwise.experiments") / "recipes" / f"{name_or_path}.yaml").read_text("utf-8")
    if not name_or_path.endswith((".yaml", ".yml")):
        raise ConfigError(unknown("recipe", name_or_path, [*recipe_names(), "a path that ends in .yaml"]))
    try:
        return text(name_or_path, follow=follow)
    except OSError as error:
        raise ConfigError(f"the recipe {name_or_path} cannot be read: {error.strerror}") from None


def load_recipe(name_or_path: str, *, follow: bool = True) -> Recipe:
    """A recipe by its name, or from a YAML file; see `recipe_source`."""
    source = recipe_source(name_or_path, follow=follow)
    written_by = found[1] if (found := _WRITTEN_BY.match(source)) else ""
    with naming_newer(written_by):
        recipe = validated(Recipe, parsed_yaml(source, f"recipe {name_or_path}"), f"recipe {name_or_path}")
    recipe._written_by = written_by
    return recipe


@contextmanager
def naming_newer(written_by: str) -> Iterator[None]:
    """Let an error inside name the version of mixwise that has written a file, if that is a newer one."""
    try:
        yield
    except ConfigError as error:
        ours, theirs = ([int(number) for number in _NUMBER.findall(text)] for text in (version("mixwise"), written_by))
        if theirs <= ours:
            raise
        this = f"this is {version('mixwise')}: pip install --upgrade mixwise"
        raise ConfigError(f"{error}; it was written by mixwise {written_by}, and {this}") from None


def plan_experiment(recipe: Recipe, overrides: Iterable[str] = ()) -> Experiment:
    """The runs of a recipe after overrides such as `steps=50`, `seeds=0-4`, `nodes=1000` or `a.policy.period=10`."""
    with naming_newer(recipe._written_by):
        return _planned(recipe, overrides)


def _planned(recipe: Recipe, overrides: Iterable[str]) -> Experiment:
    if recipe.is_described:
        raise ConfigError(
            f"recipe {recipe.name} describes Python objects, which YAML cannot hold; run the script that called "
            f"mixwise.compare again, with resume=True to continue"
        )
    for_recipe: dict[str, Any] = {}
    for_runs: list[tuple[str, Any]] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"{override!r} is not an override; write key=value, such as steps=50")
        parsed = parsed_yaml(value, f"override {key}")
        if key in _RECIPE_KEYS:
            for_recipe[key] = parsed
        else:
            for_runs.append((key, parsed))
    named = for_recipe.pop("variants", None) or list(recipe.variants)
    chosen = _chosen("variant", recipe.name, {**recipe.variants, **recipe.further}, named)
    nodes = for_recipe.pop("nodes", None)  # the size of the graph, whatever its family
    if nodes is not None and (type(nodes) is not int or nodes < 1):
        raise ConfigError(f"nodes = {nodes!r}; give a whole number of at least 1, such as nodes=1000")
    topologies = _topologies(recipe, for_recipe.pop("topology", None))
    if "seeds" in for_recipe:
        for_recipe["seeds"] = parse_seeds(for_recipe["seeds"])
    recipe = validated(Recipe, {**recipe.model_dump(), **for_recipe, "variants": chosen}, f"recipe {recipe.name}")
    merged = {
        name if len(topologies) < 2 else f"{topology}/{name}": _merged(_merged(recipe.base, place), changes)
        for topology, place in topologies.items()
        for name, changes in recipe.variants.items()
    }
    for key, value in sorted(for_runs, key=lambda change: not change[0].endswith(".kind")):  # new kinds, then options
        _override(merged, key, value)
    if nodes is not None:
        from mixwise.graphs.spec import sized  # with it SciPy, which most listings do not need

        for config in merged.values():
            config["graph"] = sized(str(config.get("graph")), nodes)
    runs = {
        name: validated(RunConfig, config, f"recipe {recipe.name}, variant {name}") for name, config in merged.items()
    }
    return Experiment(recipe, _placed(recipe, runs))


def parse_seeds(given: Any) -> list[int]:
    """Seeds from 3, "0,1,2", "0-9" or a list; at most 10,000.

    >>> parse_seeds("0-3,7")
    [0, 1, 2, 3, 7]
    """
    seeds: list[int] = []
    try:
        for part in ",".join(map(str, given if isinstance(given, list) else [given])).split(","):
            first, dash, last = part.strip().partition("-")
            seeds += range(int(first), min(int(last), int(first) + _MAX_SEEDS) + 1) if dash else [int(first)]
    except ValueError:
        raise ConfigError(f"seeds = {given}; give whole numbers such as 0,1,2 or a range such as 0-9") from None
    if not seeds:
        raise ConfigError(f"seeds = {given} is an empty range; give the lower number first, such as 0-9")
    if len(seeds) > _MAX_SEEDS:
        raise ConfigError(f"seeds = {given} are more than {_MAX_SEEDS:,}; run fewer at a time")
    return seeds


def _chosen(what: str, recipe: str, there: dict[str, Any], names: Any) -> dict[str, Any]:
    """The named ones, in the order in which they are named."""
    listed = [str(name).strip() for name in (names if isinstance(names, list) else str(names).split(","))]
    for name in listed:
        if name not in there:
            raise ConfigError(f"recipe {recipe}: " + unknown(what, name, there))
    return {name: there[name] for name in listed}


def _topologies(recipe: Recipe, names: Any) -> dict[str, dict[str, str]]:
    """The changes of each topology to the base: its graph; without topologies, one that changes nothing."""
    if recipe.topologies is None:
        if names is not None:
            raise ConfigError(f"recipe {recipe.name} has one topology; change it with graph=…")
        return {"": {}}
    chosen = recipe.topologies if names is None else _chosen("topology", recipe.name, recipe.topologies, names)
    return {name: {"graph": spec} for name, spec in chosen.items()}


def _override(configs: dict[str, dict[str, Any]], key: str, value: Any) -> None:
    """Set a dotted key in all variants, or in one if the key starts with its name; `lr` is short for `optimizer.lr`."""
    first, _, rest = key.partition(".")
    named = {name: config for name, config in configs.items() if name.rpartition("/")[2] == first}
    targets, path = named or configs, (rest if named else key).split(".")
    path = ["optimizer", "lr"] if path == ["lr"] else path
    if path[0] not in RunConfig.model_fields:
        variants = dict.fromkeys(name.rpartition("/")[2] for name in configs)
        allowed = [*RunConfig.model_fields, "lr", *(() if named else (*_RECIPE_KEYS, *variants))]
        raise ConfigError(f"{key}: " * ("." in key) + unknown("key", path[0], allowed))
    for name, config in targets.items():
        at: Any = config
        for depth, part in enumerate(path[:-1], start=1):
            if named and isinstance(at.get(part), str):
                at[part] = {"kind": at[part]}  # a name is short for that
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ConfigError(
                    f"{key}={value}: in variant {name}, {'.'.join(path[:depth])} is {at!r} and has no keys; "
                    f"change the variants that have it: VARIANT.{'.'.join(path)}={value}"
                )
        if path[-1] == "kind" and path[0] in ("task", "algorithm", "policy") and at.get("kind", value) != value:
            at.clear()  # another part has other options
        at[path[-1]] = value
        if path in (["steps"], ["epochs"]):  # one of them is enough
            config.pop("epochs" if path == ["steps"] else "steps", None)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: a part with a kind of its own replaces the old part, other parts merge key by key."""
    merged = {key: _merged(value, {}) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, dict):
            merged[key] = _merged(old if isinstance(old, dict) and "kind" not in value else {}, value)
        else:
            merged[key] = value
    return merged


def _placed(recipe: Recipe, runs: Mapping[str, RunConfig]) -> Mapping[str, RunConfig]:
    """With `placements: distinct`, each variant once for every different placement of the nodes on its graph."""
    if recipe.placements is None:
        return runs
    from mixwise.experiments.build import base_graph  # with it torch, which most listings do not need
    from mixwise.mixing import distinct_placements

    placed = {}
    for name, config in runs.items():
        graph = base_graph(config, seed=recipe.seeds[0])
        if any(base_graph(config, seed) != graph for seed in recipe.seeds):
            raise ConfigError(f"placements: distinct needs one graph for all seeds; write {config.graph},seed=0")
        for order in distinct_placements(graph):
            placed[f"{name}@{''.join(map(str, order))}"] = config.model_copy(update={"placement": list(order)})
    return placed
