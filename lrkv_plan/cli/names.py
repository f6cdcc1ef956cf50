"""Names that can be written on a command line, and a word on each, read without a specification.

A TAB and a bare call import no specification: a name is that of a file, and the word beside it is
read from the file's lines.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_Source = Callable[[str], list[tuple[str, str]]]  # names that begin so, with a word on each
_MODELS, _GPUS = "model_specs", "hardware_profiles"
_ENGINES = f"{_PACKAGE}/serving/engines"
_FAMILIES = f"{_PACKAGE}/attention/families"
_SIZE_KEYS = ("n_kv_heads", "latent_dim", "rope_dim", "rank")  # of a design in a model's file
_READ_BYTES = 64 * 1024  # of a file; the shipped ones are smaller


def model_names() -> list[str]:
    """Names of the shipped models."""
    return sorted(_shipped(_MODELS))


def gpu_names() -> list[str]:
    """Names of the shipped hardware profiles."""
    return sorted(_shipped(_GPUS))


def _shipped(folder: str) -> dict[str, str]:
    """Name to file, as the loader finds it: the package's copy, then the checkout."""
    found: dict[str, str] = {}
    for place in (_PACKAGE, os.path.dirname(_PACKAGE)):
        for name in _files_in(f"{place}/{folder}", ".yaml"):
            found.setdefault(name.removesuffix(".yaml"), f"{place}/{folder}/{name}")
    return found


def _files_in(place: str, suffix: str) -> list[str]:
    try:
        return [name for name in os.listdir(place) if name.endswith(suffix)]
    except OSError:
        return []


def models(begin: str = "") -> list[tuple[str, str]]:
    """Shipped models whose names begin so, each with its design and layers."""
    return _told(_shipped(_MODELS), begin, _design)


def gpus(begin: str = "") -> list[tuple[str, str]]:
    """Shipped GPUs whose names begin so, each with its memory and bandwidth."""
    return _told(_shipped(_GPUS), begin, _memory)


def _told(files: dict[str, str], begin: str, told: Callable[[str], str]) -> list[tuple[str, str]]:
    wanted = sorted(name for name in files if name.startswith(begin))
    return [(name, told(_text(files[name]))) for name in wanted]


def designs(begin: str = "") -> list[tuple[str, str]]:
    """How designs begin: ``mha``, ``gqa:``; a family of another package by its name."""
    written = []
    for name in sorted(_files_in(_FAMILIES, ".py")):
        found = re.search(r"^WRITTEN = \(([^)]*)\)", _text(f"{_FAMILIES}/{name}"), re.MULTILINE)
        written += re.findall(r'"([^"]+)"', found[1]) if found else []
    return _plain([*written, *_plugged("lrkv_plan.families")], begin)


def engines(begin: str = "") -> list[tuple[str, str]]:
    """Engines: each is a file, or an entry point of another package."""
    files = sorted(name for name in _files_in(_ENGINES, ".py") if name[0] != "_")
    own = [name.removesuffix(".py") for name in files]
    return _plain([*own, *_plugged("lrkv_plan.engines")], begin)


def kv_formats(begin: str = "") -> list[tuple[str, str]]:
    """Storage formats of a cache."""
    from lrkv_plan.formats import STORAGE_FORMATS

    return _plain(STORAGE_FORMATS, begin)


def weight_formats(begin: str = "") -> list[tuple[str, str]]:
    """Storage formats of weights."""
    from lrkv_plan.formats import WEIGHT_FORMATS

    return _plain(WEIGHT_FORMATS, begin)


def _plain(names: Iterable[str], begin: str) -> list[tuple[str, str]]:
    return [(name, "") for name in names if name.startswith(begin)]


def one_of(source: _Source) -> Callable[[str], list[tuple[str, str]]]:
    """A completion of one name."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return source(incomplete)

    return complete


def some_of(source: _Source) -> Callable[[str], list[tuple[str, str]]]:
    """A completion of names behind commas, a count in front (``8xh200``) left as it is."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        *before, last = incomplete.split(",")
        count = re.match(r"\d+x", last)
        head = "".join(f"{one}," for one in before) + (count[0] if count else "")
        rows = source(incomplete[len(head) :])
        return [(f"{head}{name}", told) for name, told in rows if name not in before]

    return complete


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_READ_BYTES)
    except OSError:
        return ""


def _design(text: str) -> str:
    """``gqa:8  32 layers`` of a model's file."""
    part = re.search(r"^layers:\n((?:[ -].*\n)*)", text, re.MULTILINE)
    kinds = re.split(r"^  - ", part[1] if part else "", flags=re.MULTILINE)[1:]
    attentions = [one for kind in kinds for one in re.findall(r"attention: *\{(.*)\}", kind)]
    found = dict.fromkeys(map(_size, attentions))
    # Rows cached over an encoder lie beside the rows of the layer that reads them.
    own = [kind for kind in kinds if "cached_over:" not in kind]
    counts = [re.match(r"count: *(\d+)", kind) for kind in own]
    n_layers = sum(int(count[1]) if count else 1 for count in counts)
    return f"{' + '.join(found):6} {n_layers:3} layers"


def _size(attention: str) -> str:
    """A design as it is written, of the attention of a model's file."""
    keys = dict(re.findall(r"(\w+): *([\w.]+)", attention))
    sizes = [keys[key] for key in _SIZE_KEYS if key in keys]
    return ":".join([keys["family"], *(["+".join(sizes)] if sizes else [])])


def _memory(text: str) -> str:
    """``96 GiB  4 TB/s`` of a GPU's file."""
    found = [
        re.search(rf"^{key}: *([\d.]+) *(\S+)", text, re.MULTILINE)
        for key in ("mem_capacity_bytes", "mem_bandwidth_bytes_per_s")
    ]
    return "  ".join(f"{float(one[1]):3g} {one[2]}" for one in found if one)


def _plugged(group: str) -> list[str]:
    """Names of an entry point in installed packages, without opening the metadata of all."""
    found = set()
    for folder in dict.fromkeys(sys.path):
        for name in _files_in(folder, ".dist-info"):
            text = _text(f"{folder}/{name}/entry_points.txt")
            part = text.partition(f"[{group}]")[2].partition("[")[0]
            found |= set(re.findall(r"^ *([\w.-]+) *=", part, re.MULTILINE))
    return sorted(found)
