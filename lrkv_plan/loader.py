"""Find, read and validate models and hardware profiles.

A model argument is a path (YAML, Hugging Face config.json, GGUF, or a folder that holds one of the
latter two) or the name of a shipped file. Search order for names: ``spec_dir``, the copy inside the
package, the checkout.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.documents import parse_yaml, read_json, read_text, read_yaml
from lrkv_plan.errors import SpecError, nearest_names, shown
from lrkv_plan.files import as_path, names_in, start_of_regular
from lrkv_plan.gguf.files import is_gguf
from lrkv_plan.schema import validate
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.specs.hardware import HardwareProfile

MODEL_FOLDER = "model_specs"
HARDWARE_FOLDER = "hardware_profiles"
_PACKAGE = Path(__file__).resolve().parent
MAX_FILES = 1_000  # in one folder that is searched
MAX_FOLDER_BYTES = 2 * 2**20  # of YAML; two seconds' work at worst
_SUFFIXES = (".yaml", ".yml", ".json", ".gguf")


def load_model(
    argument: str | Path | Mapping[str, Any] | ModelSpec, *, spec_dir: str | Path | None = None
) -> ModelSpec:
    """Load the model that ``argument`` names, spells out, or is.

    Parameters
    ----------
    argument : a shipped name; a YAML file, a Hugging Face config.json, a GGUF file or a folder that
        holds one; a mapping of the keys of a YAML or config.json; or a model, which is returned as
        it is.
    spec_dir : a folder of YAML files searched before the shipped ones.

    Raises
    ------
    SpecError
        If nothing of that name exists, or the file is invalid; the message names file and key.
    """
    if isinstance(argument, ModelSpec):
        return argument
    if isinstance(argument, Mapping):
        if "model_type" not in argument:
            return validate(ModelSpec, dict(argument), Path("model"))
        from lrkv_plan.huggingface import import_config

        return import_config(dict(argument), Path(str(argument.get("_name_or_path") or "config")))
    path = _as_path(argument, MODEL_FOLDER, spec_dir)
    path = path or _named(str(argument), MODEL_FOLDER, spec_dir)
    if path is None:
        raise _unknown(str(argument), MODEL_FOLDER, spec_dir)
    if is_gguf(path):
        from lrkv_plan.gguf.model import import_gguf

        return import_gguf(path)
    if os.path.isdir(path):
        path = path / "config.json"
        if not os.path.lexists(path):
            raise SpecError(f"{path.parent}: the folder holds no config.json and no GGUF file")
    if path.suffix == ".json":
        from lrkv_plan.huggingface import import_config

        return import_config(read_json(path), path)
    return validate(ModelSpec, read_yaml(path), path)


def load_gpu(
    argument: str | Path | Mapping[str, Any] | HardwareProfile,
    *,
    spec_dir: str | Path | None = None,
) -> HardwareProfile:
    """Load the hardware profile that ``argument`` names, spells out, or is.

    Parameters
    ----------
    argument : a shipped name or alias, a YAML file, a mapping of a file's keys, or a profile, which
        is returned as it is.
    spec_dir : a folder of YAML files searched before the shipped ones.

    Raises
    ------
    SpecError
        If nothing of that name exists, or the file is invalid.
    """
    from lrkv_plan.specs.hardware import HardwareProfile

    if isinstance(argument, HardwareProfile):
        return argument
    if isinstance(argument, Mapping):
        return validate(HardwareProfile, dict(argument), Path("gpu"))
    return find_hardware(argument, spec_dir=spec_dir)[0]


load_hardware = load_gpu


_GENERATION = re.compile(rb"^generation: *([^\s#]+)", re.MULTILINE)
_START_BYTES = 65_536  # of a profile; more than any shipped one


def load_relatives(
    gpus: Iterable[HardwareProfile], spec_dir: str | Path | None = None
) -> list[HardwareProfile]:
    """Profiles that may lend constants to some GPUs: of their generations, and those named.

    The others are not read whole: most of a profile is tables of constants.

    Raises
    ------
    SpecError
        If one of those files is invalid.
    """
    gpus = list(gpus)
    generations = {gpu.generation for gpu in gpus}
    named = {name for gpu in gpus for name in gpu.takes_after}
    itself = {gpus[0].name} if len(gpus) == 1 else set()
    return [
        load_gpu(path)
        for path in _profiles(spec_dir)
        if path.stem not in itself and _may_lend(path, named, generations)
    ]


def _may_lend(path: Path, named: set[str], generations: set[str]) -> bool:
    """Whether a profile states constants, and is named or of those generations.

    Where its first lines do not say so in plain letters, it is read.
    """
    from lrkv_plan.specs.layer_constants import LAYER_BLOCKS

    start = start_of_regular(path, _START_BYTES)
    blocks = "|".join(("kernels", "allreduce", *LAYER_BLOCKS))
    if len(start) < _START_BYTES and not re.search(rf"\b({blocks})[\"']? *:".encode(), start):
        return False
    found = _GENERATION.search(start)
    if path.stem in named or found is None:
        return True
    return found[1].decode("utf-8", "replace").strip("\"'").lower() in generations


def load_all_hardware(spec_dir: str | Path | None = None) -> list[HardwareProfile]:
    """Every shipped profile, those in ``spec_dir`` first. Raises ``SpecError`` for a bad file."""
    return [load_gpu(path) for path in _profiles(spec_dir)]


_MODEL = re.compile(rb"^model_dim *:", re.MULTILINE)


def _profiles(spec_dir: str | Path | None) -> list[Path]:
    """Files of profiles; models in one's own folder are passed over."""
    own = None if spec_dir is None else Path(spec_dir)
    return [
        path for path in shipped_files(HARDWARE_FOLDER, spec_dir)
        if path.parent != own or not _MODEL.search(start_of_regular(path, _START_BYTES))
    ]  # fmt: skip


def find_hardware(
    argument: str | Path, *, spec_dir: str | Path | None = None, has_hints: bool = True
) -> tuple[HardwareProfile, Path]:
    """``load_hardware`` and the file that it was read from.

    Without ``has_hints`` the error does not say which aliases are near, for which all profiles are
    read.
    """
    path = _as_path(argument, HARDWARE_FOLDER, spec_dir)
    path = path or _named(str(argument), HARDWARE_FOLDER, spec_dir)
    if path is not None:
        return _profile(path), path
    wanted = str(argument).lower()
    for candidate in _profiles(spec_dir):
        if _may_be_called(candidate, wanted) and wanted in (profile := _profile(candidate)).aliases:
            return profile, candidate
    found = _profiles(spec_dir) if has_hints else []
    aliases = {alias for candidate in found for alias in _profile(candidate).aliases}
    raise _unknown(str(argument), HARDWARE_FOLDER, spec_dir, aliases)


def _may_be_called(path: Path, wanted: str) -> bool:
    """Whether a profile may have that alias: its letters are there, or it may be written otherwise.

    YAML has escapes, and lines that go on; a file with a backslash is read.
    """
    start = start_of_regular(path, _START_BYTES)
    is_whole = len(start) < _START_BYTES
    return not is_whole or b"\\" in start or wanted.encode(errors="replace") in start.lower()


def _profile(path: Path) -> HardwareProfile:
    """The profile in a file. Raises ``SpecError``."""
    from lrkv_plan.attention.registry import kernel_names

    made = _read_profile(path, read_text(path), kernel_names())
    return made.model_copy(update={"peak_flops_per_s": dict(made.peak_flops_per_s)})


@lru_cache(maxsize=128)
def _read_profile(path: Path, text: str, kernels: tuple[str, ...]) -> HardwareProfile:
    """A profile of that text, made once: most of it is tables of constants.

    ``kernels`` are the names that it may hold; a plug-in adds some.
    """
    from lrkv_plan.specs.hardware import HardwareProfile

    del kernels
    return validate(HardwareProfile, parse_yaml(text, path), path)


def shipped_files(folder: str, spec_dir: str | Path | None = None) -> list[Path]:
    """All YAML files of a shipped folder, by name; those in ``spec_dir`` come first.

    Raises
    ------
    SpecError
        If ``spec_dir`` is no folder, or holds more than is searched.
    """
    files: dict[str, Path] = {}
    for directory in _directories(folder, spec_dir):
        names = names_in(directory, ".yaml", at_most=MAX_FILES)
        if sum(_size(directory / name) for name in names) > MAX_FOLDER_BYTES:
            raise SpecError(
                f"{directory}: holds more than {MAX_FOLDER_BYTES >> 20} MiB of YAML, too much to "
                "search; name a file in it"
            )
        for name in names:
            files.setdefault(name.removesuffix(".yaml"), directory / name)
    return [files[name] for name in sorted(files)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link to nothing: told when it is read
        return 0


def _directories(folder: str, spec_dir: str | Path | None) -> list[Path]:
    if spec_dir is not None and not os.path.isdir(spec_dir):
        raise SpecError(f"--spec-dir {spec_dir}: no such folder")
    own = None if spec_dir is None else Path(spec_dir)
    places = (own, _PACKAGE / folder, _PACKAGE.parent / folder)
    return [place for place in places if place is not None and place.is_dir()]


def _as_path(argument: str | Path, folder: str, spec_dir: str | Path | None) -> Path | None:
    """The argument as a path, if it is one: existing, or written like one.

    What a path leads to (a pipe, a link to nothing) is told where it is read.
    """
    path = as_path(argument)
    text = str(argument)
    is_written_as_path = isinstance(argument, Path) or path.suffix in _SUFFIXES or "/" in text
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if is_written_as_path:
            what = "a link to nothing" if path.is_symlink() else "no such file or folder"
            advice = _advice(text, folder, spec_dir) if _is_hub_id(text) else ()
            raise SpecError(f"{text}: {what}", advice=advice) from None
        return None
    except OSError as error:
        if not is_written_as_path:
            return None
        raise SpecError(f"{text}: cannot be read: {error.strerror}") from None
    except UnicodeEncodeError:  # half of a surrogate pair, which no name of a file holds
        raise SpecError(f"{shown(text)} is not a path") from None
    if stat.S_ISDIR(mode):
        is_model = folder == MODEL_FOLDER and is_gguf(path)
        is_written_as_path = "/" in text or os.path.lexists(path / "config.json")
        return path if is_written_as_path or is_model else None
    return path if is_written_as_path or stat.S_ISREG(mode) else None


def _named(name: str, folder: str, spec_dir: str | Path | None) -> Path | None:
    for directory in _directories(folder, spec_dir):
        path = directory / f"{name.lower()}.yaml"
        if os.path.lexists(path):
            return path
    return None


# Folder -> what its files hold, the command that lists their names, what else may be given.
_KINDS = {
    MODEL_FOLDER: ("model", "models", "a file or folder with a Hugging Face config.json"),
    HARDWARE_FOLDER: ("GPU", "hardware", "a YAML file of your own"),
}


def _unknown(
    name: str, folder: str, spec_dir: str | Path | None, aliases: Iterable[str] = ()
) -> SpecError:
    return SpecError(
        f"no shipped {_KINDS[folder][0]} is called {shown(name)}",
        advice=_advice(name, folder, spec_dir, aliases),
    )


def _advice(
    name: str, folder: str, spec_dir: str | Path | None, aliases: Iterable[str] = ()
) -> tuple[str, str]:
    _, command, else_given = _KINDS[folder]
    known = [path.stem for path in shipped_files(folder, spec_dir)]
    near = nearest_names(name, [*known, *aliases])
    names = f"perhaps  {', '.join(near):22} (all: lrkv-plan {command})"
    return (names if near else f"names:  lrkv-plan {command}", f"or {else_given}")


def _is_hub_id(text: str) -> bool:
    """Written like an organisation's model on a hub, not like a file."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text)) and not (
        text.lower().endswith(_SUFFIXES)
    )
