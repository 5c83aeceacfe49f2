"""Fuzzing in one process: damaged inputs of every kind end in a valid object or in one line, within time and memory.

    python tests/fuzz.py --count 1000                       a thousand inputs of each kind
    python tests/fuzz.py --kind recipe --count 5000 --seed 3
    python tests/fuzz.py --kind recipe --seed 3 --only 1234  one input again, with its traceback

Valid inputs are mutated: as bytes, as text, and as structures whose values are replaced by unpleasant ones. An input
fails if anything other than a `MixwiseError` of one line is raised, if it takes longer than 10 s, or if it needs more
than 1 GB beyond what the process has taken before.
"""

import argparse
import copy
import gzip
import importlib
import io
import json
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import torch
import yaml
from PIL import Image

from mixwise.cli.weights_command import _gradients
from mixwise.data.ag_news import read_csv
from mixwise.data.images import ImageForm, ImageSamples
from mixwise.data.standard import _read_idx
from mixwise.errors import MixwiseError
from mixwise.experiments import Recipe, load_recipe, load_run, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.experiments.export import export_model
from mixwise.graphs import load, parse
from mixwise.report.figures import save_paper_figures
from mixwise.report.folder import read_folders
from mixwise.report.page import page, page_data
from mixwise.storage import sealed
from mixwise.training.checkpoint import load_checkpoint
from run_folders import no_pictures

SECONDS, BYTES, LONGEST = 10, 1 << 30, 2500
NUMBERS = (
    "0", "-1", "1", "1.5", "-0.0", "1e400", ".nan", ".inf", "NaN", "Infinity", "2147483648", "-9223372036854775809",
    "99999999999", "1000000000", "10000000", "1e-300", "9" * 5000, "0x10", "1_000", "1e308",
)  # fmt: skip
WORDS = (
    "null", "true", "''", "[]", "{}", "[[]]", "{a: 1}", "2001-13-01", "!!int x", "!!binary abc", "*a", "&a", "ring:4",
    "x" * 300, "é", "\\ud800", "\0", "../..", "nan", "kind", "- ", "~", "%", "<<", "? ", "'", '"', "{", "[" * 200, "}",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**62, 10**10, 10**7, 1.5, -2.5, 1e-300, 1e300, float("nan"), float("inf"),
    "", "x", "ring:4", "0.3/L", "/L", "x" * 2000, "é\n", "cuda", "meta", "cpu:9", "a:b", "os:system", "kind", [], [1],
    [1, 2, 3], [[]], {}, {"kind": "x"}, {"a": {"b": 1}}, [0.5, 1.5], ["a"], "file:/dev/zero", "4x4", "node:1",
)  # fmt: skip


# --- mutations ---
def mutated_bytes(draw, data):
    """Some bytes flipped, cut, repeated, inserted or zeroed."""
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 8, 64, 512))
        old, rest = data[at : at + size], data[at + size :]
        flipped = bytes(byte ^ 1 << draw.randrange(8) for byte in old[:1]) + old[1:]
        new = draw.choice((flipped, b"", old + old, draw.randbytes(size), bytes(len(old)), None))
        data = data[:at] + (b"" if new is None else new + rest)
    return data


def mutated_text(draw, text):
    """A text with numbers replaced, words inserted, lines moved, or some of its bytes changed."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        way = draw.randrange(5)
        numbers = list(re.finditer(r"-?\d+(\.\d+)?", text))
        if way <= 1 and numbers:
            found = draw.choice(numbers)
            text = text[: found.start()] + draw.choice(NUMBERS) + text[found.end() :]
        elif way == 2:
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(WORDS + NUMBERS) + text[at:]
        elif way == 3:
            lines = text.splitlines(keepends=True) or [""]
            lines.insert(draw.randrange(len(lines) + 1), lines.pop(draw.randrange(len(lines))))
            text = "".join(lines[: draw.choice((len(lines), draw.randrange(len(lines) + 1)))])
        else:
            text = mutated_bytes(draw, text.encode()).decode("utf-8", "replace")
    return text


def mutated_value(draw, value):
    """A structure of mappings and lists with some values replaced, removed, moved or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = [place for place in _places(value) if place[0]]
        if not places:
            return copy.deepcopy(draw.choice(VALUES))
        holder, key = draw.choice(places)
        way = draw.randrange(8)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, dict):
            holder[draw.choice(("x", "kind", "seed", "nodes", "", "options", str(key) + "s"))] = holder.pop(key)
        elif way == 2:
            holder[key] = copy.deepcopy(draw.choice(places)[0])
        elif way == 3 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * draw.choice((0, -1, 2, 10, 1000, 10**6))
        else:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
    return value


def _places(value):
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


# --- inputs: each kind draws one and gives it to the code that users reach ---
AWARE = {"kind": "heterogeneity-aware", "period": 3, "sketch": {"kind": "count", "dim": 10}, "smoothing": 0.5}
TASK = {
    "kind": "classification", "batch": 4, "gradients": "loop",
    "data": {"kind": "gaussian-mixture", "options": {"classes": 3, "dim": 4, "samples": 40}, "validation": 0.2},
    "partition": {"kind": "dirichlet", "alpha": 0.5}, "model": {"kind": "mlp", "options": {"sizes": [4, 5, 3]}},
}  # fmt: skip
RECIPE = {
    "name": "fuzz", "description": "text", "seeds": [0, 1], "window": 2, "metrics": ["loss", "consensus_distance"],
    "base": {
        "steps": 4, "graph": "ring:4", "optimizer": {"kind": "sgd", "lr": 0.01},
        "schedule": {"warmup": 0.2, "decay_at": [0.6], "gamma": 0.5}, "checkpoint_every": 1, "record_every": 2,
    },
    "variants": {
        "plain": {
            "policy": "metropolis-hastings", "optimizer": {"momentum": 0.5, "nesterov": True},
            "links": {"bandwidth": 1e6, "edges": {"0-1": {"latency": 0.1}}},
        },
        "aware": {"policy": {**AWARE, "alternate_with": "metropolis-hastings"}, "algorithm": {"kind": "quasi-global"}},
        "adam": {"policy": "max-degree", "optimizer": {"kind": "adam", "lr": 0.01, "betas": [0.9, 0.99]}, "task": TASK},
        "choco": {"policy": "metropolis-hastings", "algorithm": {"kind": "choco", "compressor": {"kind": "top-k"}}},
    },
    "further": {"d2": {"policy": "lazy-metropolis-hastings", "algorithm": "d2", "local_steps": 1}},
}  # fmt: skip


def recipe(draw, place):
    text = yaml.safe_dump(mutated_value(draw, RECIPE) if draw.random() < 0.7 else RECIPE, sort_keys=False)
    (place / "r.yaml").write_text(mutated_text(draw, text) if draw.random() < 0.4 else text, "utf-8")
    key = draw.choice(("steps", "seeds", "variants", "graph", "aware.policy.period", "optimizer", "x", "optimizer.lr"))
    words = [f"{key}={draw.choice(WORDS + NUMBERS + ('0-99999999999', '0-3', '1,2'))}"] if draw.random() < 0.2 else []
    experiment = plan_experiment(load_recipe(str(place / "r.yaml")), words)
    experiment.to_yaml()
    prepare(draw.choice(list(experiment.runs.values())), experiment.recipe.seeds[0])


SPECS = (
    "ring:4", "grid:4x5", "torus:3x3", "hypercube:3", "complete:5", "random-connected:8,keep=0.5", "star:5", "social",
    "random-regular:8,degree=3", "erdos-renyi:8,probability=0.5", "small-world:8,neighbors=2,rewire=0.1",
    "random-geometric:9,radius=0.5", "directed-exponential:6", "file:g.csv", "exponential:9",
)  # fmt: skip


def graph_spec(draw, place):
    parse(mutated_text(draw, draw.choice(SPECS)).replace("file:", f"file:{place}/"), seed=0)


GRAPHS = {
    "csv": "source,target,weight\n0,1,0.5\n1,2,1\n2,3\n3,0\n# end\n",
    "txt": "a b\nb c {'w': 1}\nc a\nd d\n",
    "gml": 'graph [\n node [ id 0 label "a" ]\n node [ id 1 ]\n node [ id 2 ]\n edge [ source 0 target 1 ]\n'
    " edge [ source 1 target 2 ]\n]\n",
    "graphml": '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="d0" for="node" '
    'attr.name="label" attr.type="string"/><graph edgedefault="undirected"><node id="0"><data key="d0">x</data></node>'
    '<node id="1"/><edge source="0" target="1"/></graph></graphml>',
}


def graph_file(draw, place):
    suffix = draw.choice(list(GRAPHS))
    file = place / f"g.{draw.choice((suffix, suffix, suffix, 'edges', 'gml'))}"
    text = GRAPHS[suffix]
    file.write_bytes(mutated_text(draw, text).encode() if draw.random() < 0.7 else mutated_bytes(draw, text.encode()))
    load(file)


def npy(draw, place):
    file, rows = io.BytesIO(), np.arange(12.0).reshape(4, 3)
    np.savez_compressed(file, rows) if draw.random() < 0.2 else np.save(file, rows)
    data = file.getvalue()
    if draw.random() < 0.5:
        data = mutated_text(draw, data[10:127].decode("latin1")).encode("latin1", "replace")[:60000].ljust(118)
        data = file.getvalue()[:8] + struct.pack("<H", len(data)) + data + file.getvalue()[128:]
    (place / "g.npy").write_bytes(mutated_bytes(draw, data) if draw.random() < 0.6 else data)
    _gradients(place / "g.npy", 4)


def idx(draw, place):
    shape = [draw.choice((2, 3, 4, 2**16, 2**31, 0)) if draw.random() < 0.2 else 3 for _ in range(3)]
    data = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + bytes(draw.choice((27, 27, 27, 26, 10**6)))
    data = mutated_bytes(draw, data) if draw.random() < 0.6 else data
    packed = draw.random() < 0.5
    if packed:
        data = gzip.compress(data, 1)
        data = mutated_bytes(draw, data) if draw.random() < 0.5 else data
    (path := place / f"i{'.gz' * packed}").write_bytes(data)
    _read_idx(path, axes=draw.choice((3, 3, 1)))


def texts(draw, place):
    text = '"3","Wall St.","Reuters - ""Short"" sellers \\\\ $"\n"1","A","b"\n"4","C","d"\n'
    (place / "t.csv").write_bytes(mutated_text(draw, text).encode("utf-8", "replace"))
    read_csv(place / "t.csv", draw.choice((None, 4)))


@cache
def _encoded(form, mode):
    pixels = np.random.default_rng(0).integers(0, 255, (12, 9, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


def image(draw, place):
    form, mode = draw.choice(
        (("PNG", "RGB"), ("JPEG", "L"), ("GIF", "P"), ("BMP", "RGB"), ("TIFF", "L"), ("PPM", "RGB"))
    )
    data = mutated_bytes(draw, _encoded(form, mode))

    class One:
        def __len__(self):
            return 1

        def source(self, index):
            return data

        def name(self, index):
            return "image 0"

    form = ImageForm(size=draw.choice((1, 8)))
    ImageSamples(One(), form, workers=0).take(torch.tensor([0]), draw.choice((None, 3)))


@cache
def _run():
    """A finished run of every variant, made once."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-")) / "run"
    experiment = plan_experiment(Recipe.model_validate(RECIPE), ["variants=plain,aware,adam"])
    with no_pictures():
        run_experiment(experiment, folder)
    return folder, experiment


def _damaged(draw, place, files):
    """A copy of a run with one of these files damaged."""
    folder = shutil.copytree(_run()[0], place / "run")
    found = sorted(path for name in files for path in folder.rglob(name))
    path = draw.choice(found)
    data = path.read_bytes()
    way = draw.random()
    if way > 0.97:
        path.unlink()
        if way > 0.98:
            path.symlink_to(draw.choice(("/etc/hostname", "/dev/zero", path.name)))
    elif path.suffix == ".safetensors":
        path.write_bytes(_edited(draw, data) if way < 0.6 else mutated_bytes(draw, data))
    elif way > 0.8:
        path.write_bytes(mutated_bytes(draw, data))
    elif way > 0.5:
        path.write_text(mutated_text(draw, data.decode()), "utf-8")
    elif path.name == "config.yaml":
        path.write_text(yaml.safe_dump(mutated_value(draw, yaml.safe_load(data)), sort_keys=False), "utf-8")
    else:
        lines = data.decode().splitlines()
        at = draw.randrange(len(lines))
        value = json.loads(lines[at])
        seals = value.pop("crc32", None) is not None and draw.random() < 0.8
        line = json.dumps(mutated_value(draw, value))
        lines[at] = sealed(line) if seals else line
        path.write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def _edited(draw, data):
    """A checkpoint with another header, without a checksum, as 0.2.0 wrote them."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["mixwise"])
    about.pop("sha256")
    if draw.random() < 0.7:
        about = mutated_value(draw, about)
    else:
        header = mutated_value(draw, header)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["mixwise"] = json.dumps(about)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


ALL = ("config.yaml", "metrics.jsonl", "weights.jsonl", "scene.json", "timings.jsonl", "*.safetensors")


def report(draw, place):
    page(page_data(read_folders([_damaged(draw, place, ALL[:4])])))


def figures(draw, place):
    save_paper_figures(_damaged(draw, place, ALL[:4]), ("svg",))


def loaded(draw, place):
    run = load_run(_damaged(draw, place, ALL[:3]))
    repr(run), list(run.rows()), run.summary, run.curve("plain", "loss")


def exported(draw, place):
    folder = _damaged(draw, place, ALL[5:])
    found = sorted(path for path in folder.rglob("*.safetensors") if not path.is_symlink())
    for path in draw.sample(found, draw.choice((0, 4, 8))):
        path.write_bytes(mutated_bytes(draw, path.read_bytes()))
    export_model(folder, "adam", draw.choice(("average", "node:1")), place / "m.safetensors", seed=draw.choice((0, 1)))


def resumed(draw, place):
    folder, experiment = _damaged(draw, place, ALL), _run()[1]
    with no_pictures():
        run_experiment(experiment, folder, resume=True)


@cache
def _training():
    for name in ("networkx", "matplotlib.figure", "scipy.sparse.csgraph"):
        importlib.import_module(name)
    return prepare(_run()[1].runs["aware"], 0).start()


def checkpoint(draw, place):
    for file in (_run()[0] / "aware" / "seed-0" / "checkpoint").iterdir():
        data = file.read_bytes()
        if draw.random() < 0.8:
            data = _edited(draw, data) if draw.random() < 0.6 else mutated_bytes(draw, data)
        (place / file.name).write_bytes(data)
    load_checkpoint(_training(), place)


KINDS = {
    each.__name__: each
    for each in (
        recipe, graph_spec, graph_file, npy, idx, texts, image, checkpoint, report, loaded, exported, resumed, figures,
    )
}  # fmt: skip
SLOW = {"figures": 40, "resumed": 10, "report": 4, "loaded": 4, "exported": 2, "checkpoint": 2}  # one of so many


# --- one input ---
class TooLongError(BaseException):
    """An input took more than its time."""


def _too_long(*_):
    raise TooLongError


@contextmanager
def limits():
    """Stop after the time limit, and let allocations beyond the memory limit fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + BYTES, hard))
    # The time of this process, since the machine may be busy; and real time, since waiting takes none of it.
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 20 * SECONDS)}
    before = {name: signal.signal(name, _too_long) for name in timers}
    for timer in timers.values():
        signal.setitimer(*timer)
    try:
        yield
    finally:
        for name, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(name, before[name])
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(kind, seed, number):
    """valid, refused, or the description of a failure."""
    _training()  # the first input does not pay for imports
    draw = random.Random(f"{seed}/{kind}/{number}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limits():
                KINDS[kind](draw, Path(place))
        except MixwiseError as error:
            line = str(error)
            return "refused" if 0 < len(line) <= LONGEST and "\n" not in line else f"not one line: {line[:300]!r}"
        except TooLongError:
            return f"longer than {SECONDS} s\n{traceback.format_exc(limit=-6)}"
        except BaseException:
            return traceback.format_exc(limit=-8)
    return "valid"


def campaign(kinds, seed, count):
    """Yield (kind, number, outcome) of every input."""
    for number in range(count):
        for kind in kinds:
            if number % SLOW.get(kind, 1) == 0:
                yield kind, number, outcome(kind, seed, number)


def main():
    """Run a campaign, or one input again."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kind", choices=KINDS, action="append")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--only", type=int, help="one input of a kind")
    given = options.parse_args()
    kinds, start = given.kind or list(KINDS), time.monotonic()
    if given.only is not None:
        print(*(outcome(kind, given.seed, given.only) for kind in kinds), sep="\n")
        return 0
    counts = Counter()
    with patch("mixwise.storage._fsync"):
        for kind, number, found in campaign(kinds, given.seed, given.count):
            result = found if found in ("valid", "refused") else "failed"
            counts[kind, result] += 1
            if result == "failed":
                print(f"--- {kind} --seed {given.seed} --only {number}\n{found}", flush=True)
    for kind in kinds:
        print(f"{kind:12}", *(f"{counts[kind, result]:7} {result}" for result in ("valid", "refused", "failed")))
    failures = sum(counts[kind, "failed"] for kind in kinds)
    print(f"{counts.total()} inputs, {failures} failures, seed {given.seed}, {time.monotonic() - start:.0f} s")
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
