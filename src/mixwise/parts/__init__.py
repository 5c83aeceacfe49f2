"""Parts: everything that a recipe can name, declared once, where it is written.

    @part("quasi-global", title="quasi-global momentum", cite="Lin et al. 2021")
    @dataclass(frozen=True)
    class QuasiGlobalMomentum(Algorithm):
        beta: Unit = 0.9
        inner: Algorithm = DSGD()

The signature is the recipe's schema: an option is an argument whose type can be written in YAML. Numbers, strings and
lists can; other parts can, as a name or as `{kind: NAME, option: …}`. An argument of another type (a tensor, a graph)
can be set in Python only. The constructor of a declared dataclass checks its arguments against the same types, so
defaults and bounds are the same in Python and in recipes.

Names are resolved lazily. `index.json` says which module holds which part, and `lookup` imports that module;
`docs/tables.py` writes the index, and a test compares it with the source. A part from outside of mixwise is named
`package.module:Name`, or by an entry point in the group `mixwise.parts`: `policy.my-policy = "package.module:Name"`.
"""

from mixwise.parts.declaration import (
    Bound,
    Declaration,
    declaration,
    declared,
    family,
    is_reference,
    kind,
    part,
    supply,
    words,
)
from mixwise.parts.registry import build, entries, lookup, names, normalized
from mixwise.parts.types import (
    FAMILIES,
    Count,
    Family,
    Natural,
    NonNegative,
    OptionError,
    Positive,
    Probability,
    Share,
    Unit,
)

__all__ = [
    "FAMILIES", "Bound", "Count", "Declaration", "Family", "Natural", "NonNegative", "OptionError", "Positive",
    "Probability", "Share", "Unit", "build", "declaration", "declared", "entries", "family", "is_reference", "kind",
    "lookup", "names", "normalized", "part", "supply", "words",
]  # fmt: skip
