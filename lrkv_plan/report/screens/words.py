"""Phrases that verdicts share: GPUs by the name people say, counted users, lengths, times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.screen import GLYPHS, Basis, short_tokens, significant, with_band

if TYPE_CHECKING:
    from lrkv_plan.specs.deployment import Parallelism

WHY = "Why:\N{NO-BREAK SPACE}--explain"  # the end of a foot, never parted


def gpu_name(name: str, title: str | None) -> str:
    """A GPU as people say it: the words of its name, spelled as its title spells them.

    The name itself where the title does not hold all of them.

    Examples
    --------
    >>> gpu_name("h100-sxm", "NVIDIA H100 SXM5 80 GB"), gpu_name("my-gpu", "A card of ours")
    ('H100 SXM', 'my-gpu')
    >>> gpu_name("a100-sxm-80gb", "NVIDIA A100 SXM4 80 GB")
    'A100 SXM 80 GB'
    """
    found = [_spelled(word, title or "") for word in name.split("-")]
    return name if None in found else " ".join(map(str, found))


def _spelled(word: str, title: str) -> str | None:
    """The word as the title writes it; 80gb is also 80 GB, sxm also the start of SXM5."""
    pattern = re.sub(r"(?<=\d)(?=[^\d\\])", r"\\s?", re.escape(word))
    after = "(?![A-Za-z0-9])" if word[-1:].isdigit() else "(?![A-Za-z])"
    found = re.search(f"(?<![A-Za-z0-9]){pattern}{after}", title, re.IGNORECASE)
    return found[0] if found and word else None


def gpu_words(name: str, title: str | None, n: int) -> str:
    """So many GPUs of one kind.

    Examples
    --------
    >>> [gpu_words("h100-sxm", "NVIDIA H100 SXM5 80 GB", n) for n in (1, 8)]
    ['one H100 SXM', '8 x H100 SXM']
    """
    spoken = gpu_name(name, title)
    return f"one {spoken}" if n == 1 else f"{n:,} x {spoken}"


def sharing_words(parallel: Parallelism) -> str:
    """How GPUs share a model: tensor parallelism always, other kinds where they are above 1.

    Examples
    --------
    >>> from lrkv_plan.specs.deployment import Parallelism
    >>> sharing_words(Parallelism(tp_size=2, dp_size=4, ep_size=8))
    'TP 2 DP 4 EP 8'
    """
    sizes = (*_SIZES, ("DCP", "dcp_size"))
    return " ".join(
        f"{word} {getattr(parallel, key)}" for word, key in sizes
        if key == "tp_size" or getattr(parallel, key) > 1
    )  # fmt: skip


_SIZES = (("TP", "tp_size"), ("PP", "pp_size"), ("DP", "dp_size"), ("EP", "ep_size"))


def replica_words(name: str, title: str | None, told: Mapping[str, Any]) -> str:
    """The GPUs of a replica; how they share the model, where it is not tensor parallelism alone.

    Examples
    --------
    >>> replica_words("h200", "NVIDIA H200", {"tp_size": 8})
    '8 x H200'
    >>> replica_words("h200", "NVIDIA H200", {"tp_size": 1, "dp_size": 8, "ep_size": 8})
    '8 x H200 (DP 8, EP 8)'
    """
    sizes = {key: int(told.get(key) or 1) for _, key in _SIZES}
    words = gpu_words(name, title, sizes["tp_size"] * sizes["pp_size"] * sizes["dp_size"])
    above = [f"{word} {sizes[key]}" for word, key in _SIZES if sizes[key] > 1]
    plain = all(sizes[key] == 1 for _, key in _SIZES if key != "tp_size")
    return words if plain else f"{words} ({', '.join(above)})"


def users(n: int) -> str:
    """So many users.

    Examples
    --------
    >>> [users(n) for n in (0, 1, 1204)]
    ['no user', 'one user', '1,204 users']
    """
    return counted(n, "user")


def counted(n: int, what: str) -> str:
    """So many of something, in a sentence.

    Examples
    --------
    >>> counted(1, "sequence"), counted(3, "GPU")
    ('one sequence', '3 GPUs')
    """
    number = {0: "no", 1: "one"}.get(n, f"{n:,}")
    return f"{number} {what}{'s' if n > 1 else ''}"


def tokens(n: int) -> str:
    """A length of a context.

    Examples
    --------
    >>> tokens(8192), tokens(1)
    ('8k tokens', '1 token')
    """
    return f"{short_tokens(n)} token{'' if n == 1 else 's'}"


def a_token(middle_s: float, low_s: float, high_s: float) -> str:
    """A step time with its band, as time per token.

    Examples
    --------
    >>> a_token(0.0250, 0.0229, 0.0287)
    '25.0 ms (23 to 29) a token'
    """
    middle, _, band = with_band(middle_s, low_s, high_s).partition(" ")
    return f"{middle} ms {band} a token"


def brief(labels: Sequence[str]) -> list[str]:
    """Designs without their options, where that still tells them apart.

    Examples
    --------
    >>> brief(["mla:512+64,query_latent_dim=1536", "lrkv:16", "lrkv:16,groups=2"])
    ['mla:512+64', 'lrkv:16', 'lrkv:16,groups=2']
    """
    distinct = [label.partition(",")[0] for label in dict.fromkeys(labels)]
    shortened = (label.partition(",")[0] for label in labels)
    return [
        short if distinct.count(short) == 1 else label
        for short, label in zip(shortened, labels, strict=True)
    ]


def deciding_products(label: str, option: str, seconds: float) -> str:
    """What is said where a design would change places if its kernel expanded heads itself.

    Parameters
    ----------
    option : the option of the design under which it does.
    seconds : what the products over heads take of a step. [s]

    Examples
    --------
    >>> deciding_products("lrkv:16", "expansion=kernel", 0.27e-3)[:59]
    'Assumed, and it decides: lrkv:16 expands heads in batched p'
    """
    return (
        f"Assumed, and it decides: {label} expands heads in batched products beside its kernel, "
        f"{significant(1e3 * seconds, 2)} ms of a step; {label},{option} is the other case."
    )


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words in a sentence.

    Examples
    --------
    >>> listed(["gqa:8", "mha", "mqa"])
    'gqa:8, mha and mqa'
    """
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def legend(used: Sequence[Basis]) -> str:
    """What the glyphs of a screen mean, those that are used.

    Examples
    --------
    >>> legend(["assumed", "measured"])
    '● measured on this GPU, ○ assumed'
    """
    borrowed = " or ".join(one for one in ("borrowed", "datasheet") if one in used)
    meanings: tuple[tuple[Basis, str], ...] = (
        ("measured", "measured on this GPU"),
        ("datasheet" if borrowed == "datasheet" else "borrowed", _HALF[borrowed]),
        ("assumed", "assumed"),
    )
    return ", ".join(
        f"{GLYPHS[basis]} {meaning}" for basis, meaning in meanings if basis in used and meaning
    )


_HALF = {
    "": "",
    "borrowed": "borrowed from another shape, engine or GPU",
    "datasheet": "typical share of the datasheet",
    "borrowed or datasheet": "borrowed from another shape, engine or GPU, or of the datasheet",
}
