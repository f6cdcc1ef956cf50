"""2,000 mutated spec and config files: one clear line, exit code 3, no traceback."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, shipped_files
from tests.huggingface.test_huggingface import CASES, expanded

N_FILES = 2_000
SEED = 20_261_130

# Values that no count, width or size may have.
WRONG: list[Any] = [
    -1, 0, 1.5, -0.0, 10**30, 2**63, True, False, "", "many", "80 furlongs", "3.35e12x",
    [], [1], {}, {"x": 1}, float("nan"), float("inf"), "\x00", "[red]",
]  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all whole numbers (not booleans) in a document."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*here, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*here, index))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield here


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return changed


# Keys whose value a config.json must state rightly for any bytes to follow.
NEEDED = {
    "hidden_size", "n_embd", "n_embed", "d_model", "num_hidden_layers", "n_layer", "n_layers",
    "num_layers", "num_attention_heads", "n_head", "n_heads", "head_dim", "kv_lora_rank",
    "qk_rope_head_dim", "num_key_value_heads",
}  # fmt: skip


def damaged_bytes(text: str, chance: random.Random) -> bytes:
    """The file cut short inside a structure, or with junk that no text file holds."""
    data = text.encode()
    kind = chance.randrange(4)
    if kind == 0:
        # The brace after the quote: a cut inside quoted text must not be closed by it.
        return data[: chance.randrange(1, len(data) // 3)] + b'\n{"}\n{"'
    if kind == 1:
        where = chance.randrange(len(data))
        return data[:where] + bytes([0xFF, 0xFE, chance.randrange(0x80, 0x100)]) + data[where:]
    if kind == 2:
        return chance.randbytes(chance.randrange(1, 5000)) + b"\xff"
    return b"[" * chance.randrange(100, 50_000) + data


def damaged_spec(document: Any, chance: random.Random) -> Any:
    """A spec with one number made impossible, one needed key gone, or one key misspelled."""
    kind = chance.randrange(4)
    if kind == 0:
        changed = copy.deepcopy(document)
        del changed[chance.choice(["layers", "name"])]
        return changed
    if kind == 1:
        changed = copy.deepcopy(document)
        key = chance.choice(list(changed))
        changed[key + chance.choice(["_", "s", "X"])] = changed.pop(key)
        return changed
    numbers = [p for p in paths(document) if p[0] != "layer_order" and not is_optional(p)]
    return replaced(document, chance.choice(numbers), chance.choice(WRONG))


def is_optional(place: tuple[Any, ...]) -> bool:
    """Numbers where 0 or a size in words is right: they would not always be damage."""
    zero_is_fine = {
        "rope_dim", "shared_hidden_dim", "dense_hidden_dim", "per_mixer", "per_feed_forward",
        "draft_layers", "extra_params", "bytes_per_draft_token",
    }  # fmt: skip
    return bool(zero_is_fine & set(map(str, place)))


def damaged_config(config: Any, chance: random.Random) -> Any:
    inner = config.get("text_config", config)
    unused = {"num_key_value_heads", "head_dim"} if "kv_lora_rank" in inner else set()
    unused |= {"num_hidden_layers"} if "decoder_layers" in inner else set()
    keys = [key for key in inner if key in NEEDED - unused]
    changed = copy.deepcopy(config)
    part = changed.get("text_config", changed)
    # Zero is a rope width that MLA may have, so it is no damage there.
    key = chance.choice(keys)
    part[key] = chance.choice([v for v in WRONG if not (key == "qk_rope_head_dim" and v == 0)])
    return changed


def cases() -> Iterator[tuple[str, bytes, list[str]]]:
    """(file name, content, command) of every damaged file."""
    chance = random.Random(SEED)
    models = [p.read_text() for p in shipped_files(MODEL_FOLDER)]
    gpus = [p.read_text() for p in shipped_files(HARDWARE_FOLDER)]
    configs = [json.dumps(expanded(case["config"])) for case in CASES]
    makers: list[tuple[list[str], str, Callable[[str], bytes], list[str]]] = [
        (models, "m.yaml", lambda t: damaged_bytes(t, chance), ["cache"]),
        (configs, "config.json", lambda t: damaged_bytes(t, chance), ["cache"]),
        (gpus, "g.yaml", lambda t: damaged_bytes(t, chance), ["hardware", "show"]),
        (
            models, "m.yaml",
            lambda t: yaml.dump(damaged_spec(yaml.safe_load(t), chance)).encode(), ["cache"],
        ),
        (
            configs, "config.json",
            lambda t: json.dumps(damaged_config(json.loads(t), chance)).encode(), ["cache"],
        ),
    ]  # fmt: skip
    for index in range(N_FILES):
        sources, name, damage, command = makers[index % len(makers)]
        yield name, damage(chance.choice(sources)), command


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_two_thousand_damaged_files_each_end_in_one_clear_line(tmp_path: Path) -> None:
    runner = CliRunner()
    n_files = 0
    for number, (name, content, command) in enumerate(cases()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(content)
        result = runner.invoke(app, [*command, str(path), "--format", "json"])
        about = f"{content[:2000]!r} -> {result.output}"
        assert result.exit_code == 3, about
        assert result.stdout == "", about
        assert result.stderr.startswith(f"error: {path}: "), about
        assert result.stderr.count("\n") == 1, about
        assert len(result.stderr) < 1_000, about
        n_files += 1
    assert n_files == N_FILES
