"""Finding specs, validating them, and the errors that name file, key, value and what is allowed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lrkv_plan import load_hardware, load_model
from lrkv_plan.errors import SpecError
from lrkv_plan.loader import (
    HARDWARE_FOLDER,
    MODEL_FOLDER,
    load_all_hardware,
    load_relatives,
    shipped_files,
)
from lrkv_plan.specs.model import model_to_yaml

GOOD = """
name: toy
source: {citation: made up, read_on: 2026-11-30}
model_dim: 64
layers:
  - count: 2
    attention: {family: gqa, n_heads: 8, n_kv_heads: 2, head_dim: 16}
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def one(text: str, name: str = "toy.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return one


def test_a_path_a_name_and_a_spec_dir_find_the_same_model(write) -> None:  # type: ignore[no-untyped-def]
    path = write(GOOD)
    assert load_model(path) == load_model(str(path))
    assert load_model("toy", spec_dir=path.parent) == load_model(path)


def test_a_folder_stands_for_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    config = (
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,'
        ' "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}'
    )
    (folder / "config.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    for argument in (folder, str(folder), "llama", "./llama"):
        assert load_model(argument).n_layers == 32
    assert load_model(folder).name == "llama"
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"holds no config\.json"):
        load_model("./empty")


def test_sizes_are_read_as_people_write_them(tmp_path: Path) -> None:
    gpu = load_hardware("h100-sxm")
    assert gpu.mem_capacity_bytes == 80 * 2**30
    assert gpu.mem_visible_bytes == 85_029_615_043  # 79.19 GiB
    assert gpu.mem_bandwidth_bytes_per_s == 3.35e12


def test_plain_scientific_numbers_are_base_units(tmp_path: Path) -> None:
    # PyYAML reads 3.35e12, without a sign, as text.
    text = shipped_files(HARDWARE_FOLDER)[0].read_text()
    lines = [
        "mem_bandwidth_bytes_per_s: 3.35e12" if line.startswith("mem_bandwidth") else line
        for line in text.splitlines()
    ]
    path = tmp_path / "gpu.yaml"
    path.write_text("\n".join(lines))
    assert load_hardware(path).mem_bandwidth_bytes_per_s == 3.35e12


def test_an_alias_finds_its_profile() -> None:
    assert load_hardware("H100") == load_hardware("h100-sxm")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model_dim: 64", "model_dim: -64", "model_dim: -64: input should be greater than"),
        ("model_dim: 64", "model_dim: 0", "model_dim: 0"),
        ("model_dim: 64", "model_dim: 64.5", "model_dim: 64.5"),
        ("model_dim: 64", "model_dim: yes", "model_dim: True"),
        ("model_dim: 64", "model_dim: '64'", "model_dim: '64'"),
        ("model_dim: 64", "model_dim: 99999999999", "model_dim: 99999999999"),
        ("model_dim: 64", "model_dmi: 64", "model_dmi: unknown key; did you mean 'model_dim'"),
        ("model_dim: 64\n", "", "model_dim: is missing"),
        ("count: 2", "count: 100000", "layers.0.count: 100000"),
        ("family: gqa", "family: gqaa", "attention family 'gqaa' is unknown; did you mean 'gqa'"),
        ("n_kv_heads: 2", "n_kv_heads: 3", "layers.0.attention: n_kv_heads 3 does not divide 8"),
        ("head_dim: 16", "head_dim: 16, rank: 3", "rank: unknown key"),
        ("head_dim: 16", "head_dim: nan", "layers.0.attention.head_dim: 'nan'"),
        ("read_on: 2026-11-30", "read_on: soon", "source.0.read_on: 'soon'"),
        ("citation: made up, ", "", "source.0: source needs a url or a citation"),
        ("source: {citation: made up, read_on: 2026-11-30}", "source: []", "source"),
        ("count: 2", "count: 2\n    window_tokens: 100", "window_tokens and window_kind"),
        ("count: 2", "count: 2\n    reuses_cache: 1", "reuses_cache: 1"),
    ],
)
def test_a_bad_value_names_file_key_and_value(write, old: str, new: str, message: str) -> None:  # type: ignore[no-untyped-def]
    assert old in GOOD
    path = write(GOOD.replace(old, new))
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_all_bad_keys_of_a_file_are_told_at_once(write) -> None:  # type: ignore[no-untyped-def]
    text = GOOD.replace("model_dim: 64", "model_dmi: 64").replace("n_heads: 8, ", "")
    path = write(text.replace("count: 2", "count: 0").replace("head_dim: 16", "head_dim: x"))
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path}: 5 keys are wrong: model_dmi: unknown key; did you mean 'model_dim'?; "
        "layers.0.count: 0: input should be greater than or equal to 1; "
        "layers.0.attention.head_dim: 'x': input should be a valid integer; "
        "missing: model_dim, layers.0.attention.n_heads"
    )


def test_a_placeholder_is_refused_by_name_and_never_taken_as_a_figure(write) -> None:  # type: ignore[no-untyped-def]
    text = GOOD.replace("name: toy", "name: FILL_IN").replace("model_dim: 64", "model_dim:")
    path = write(text.replace("family: gqa", "family: FILL_IN").replace("16}", "FILL_IN}"))
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path}: 4 keys are wrong: model_dim: has no value; not filled in: name, "
        "layers.0.attention.family, layers.0.attention.head_dim"
    )
    with pytest.raises(SpecError, match=r"toy\.yaml: name: is not filled in$"):
        load_model(write(GOOD.replace("name: toy", "name: my FILL_IN model")))


def test_unknown_names_suggest_the_nearest_and_where_to_look() -> None:
    with pytest.raises(SpecError, match=r"perhaps h100-sxm.*lrkv-plan hardware"):
        load_hardware("h100-sxn")
    with pytest.raises(SpecError, match=r"perhaps lrkv-paper-2.5b.*lrkv-plan models"):
        load_model("lrkv-paper-2.5")
    with pytest.raises(SpecError, match="no such file or folder"):
        load_model("./nothing.yaml")
    with pytest.raises(SpecError):
        load_model("a\0b")
    with pytest.raises(SpecError):
        load_model("x" * 10_000)


def test_layer_order_must_agree_with_the_counts(write) -> None:  # type: ignore[no-untyped-def]
    two = GOOD + "  - count: 1\nlayer_order: [0, 1, 0]\n"
    assert load_model(write(two)).layer_order == (0, 1, 0)
    with pytest.raises(SpecError, match="layer_order has"):
        load_model(write(two.replace("[0, 1, 0]", "[0, 1, 1]")))
    with pytest.raises(SpecError, match="layer_order names group 2 of 2"):
        load_model(write(two.replace("[0, 1, 0]", "[0, 2, 0]")))


@pytest.mark.parametrize("path", shipped_files(MODEL_FOLDER), ids=lambda p: p.stem)
def test_shipped_models_load_and_name_their_source(path: Path) -> None:
    model = load_model(path)
    assert model.name == path.stem
    assert model.source


@pytest.mark.parametrize("path", shipped_files(HARDWARE_FOLDER), ids=lambda p: p.stem)
def test_shipped_hardware_loads_and_names_its_source(path: Path) -> None:
    profile = load_hardware(path)
    assert profile.name == path.stem
    assert profile.source
    price = profile.hourly_price
    if price is not None:
        assert price.kind == "on-demand"
        assert price.provider
        assert price.read_on
        assert price.url
    # macOS lends the GPU three quarters to nine tenths of the memory that it shares with the CPU.
    least = 0.75 if profile.vendor == "apple" else 0.9
    capacity, visible = profile.mem_capacity_bytes, profile.mem_visible_bytes
    assert visible is None or least * capacity <= visible <= capacity


@pytest.mark.parametrize(
    ("name", "peak", "cores", "flop_per_clock", "clock_hz"),
    [
        # With fp32 accumulate a GeForce tensor core does half of what the die's other cards do.
        ("rtx-3060", "bf16", 28, 512, 1.777e9),
        ("rtx-3080", "bf16", 68, 512, 1.710e9),
        ("rtx-4070-ti", "bf16", 60, 512, 2.610e9),
        ("rtx-4080", "bf16", 76, 512, 2.505e9),
        ("rtx-4090-d", "bf16", 114, 512, 2.520e9),
        ("rtx-5070-ti", "bf16", 70, 512, 2.452e9),
        ("rtx-5080", "bf16", 84, 512, 2.617e9),
        ("a40", "bf16", 84, 1024, 1.740e9),
        ("rtx-a6000", "bf16", 84, 1024, 1.800e9),
        ("rtx-4000-ada", "bf16", 48, 1024, 2.175e9),
        ("rtx-6000-ada", "bf16", 142, 1024, 2.505e9),
        ("gb10", "bf16", 48, 1024, 2.418e9),
        ("a800-sxm-80gb", "bf16", 108, 2048, 1.410e9),
        ("t4", "fp16", 40, 1024, 1.590e9),
        ("v100-sxm", "fp16", 80, 1024, 1.530e9),
        ("v100s-pcie", "fp16", 80, 1024, 1.597e9),
        ("apple-m3-max", "fp16", 40, 256, 1.398e9),
        ("apple-m4-max", "fp16", 40, 256, 1.678e9),
    ],
)
def test_a_shipped_peak_is_dense_and_of_fp32_accumulate(
    name: str, peak: str, cores: int, flop_per_clock: int, clock_hz: float
) -> None:
    profile = load_hardware(name)
    assert profile.n_sm == cores
    assert profile.matmul_peak == peak
    assert profile.peak_flops_per_s[peak] == pytest.approx(
        cores * flop_per_clock * clock_hz, rel=0.006
    )


def test_an_ascend_910c_is_one_die_as_engines_count_them() -> None:
    die = load_hardware("910c")
    assert die.name == "ascend-910c"
    assert 2 * die.mem_capacity_bytes == 128 * 2**30
    assert 2 * die.mem_bandwidth_bytes_per_s == 3.2e12
    assert 2 * die.peak_flops_per_s["fp16"] == 752e12


def test_only_gpus_with_bf16_arithmetic_state_a_bf16_peak() -> None:
    without = {"t4", "v100-sxm", "v100s-pcie"}
    stated = {gpu.name for gpu in load_all_hardware() if "bf16" in gpu.peak_flops_per_s}
    assert without.isdisjoint(stated)
    assert {gpu.name for gpu in load_all_hardware() if gpu.vendor != "apple"} - without == stated


def test_a_private_file_may_name_no_source_and_any_vendor(write) -> None:  # type: ignore[no-untyped-def]
    model = load_model(
        write(GOOD.replace("source: {citation: made up, read_on: 2026-11-30}\n", ""))
    )
    assert model.source == ()
    assert load_model(write(model_to_yaml(model))) == model
    own = (
        "name: own\ntitle: own\nvendor: Huawei\ngeneration: Ascend-910C\n"
        "mem_capacity_bytes: 64 GiB\nmem_bandwidth_bytes_per_s: 1.6 TB/s\n"
        "peak_flops_per_s: {fp16: 376 TFLOP/s}\n"
    )
    gpu = load_hardware(write(own))
    assert (gpu.vendor, gpu.generation, gpu.source) == ("huawei", "ascend-910c", ())
    with pytest.raises(SpecError, match="vendor: 'nvida': unknown; did you mean 'nvidia'"):
        load_hardware(write(own.replace("Huawei", "nvida")))


def test_shipped_hardware_names_and_aliases_are_unique() -> None:
    profiles = [load_hardware(path) for path in shipped_files(HARDWARE_FOLDER)]
    names = [name for p in profiles for name in (p.name, *p.aliases)]
    assert len(names) == len(set(names))
    assert len(profiles) >= 18


def test_spec_dir_shadows_the_shipped_files(tmp_path: Path) -> None:
    shutil.copy(shipped_files(HARDWARE_FOLDER)[0], tmp_path / "mine.yaml")
    assert tmp_path / "mine.yaml" in shipped_files(HARDWARE_FOLDER, tmp_path)


def test_a_folder_of_ones_own_holds_models_beside_gpus(tmp_path: Path) -> None:
    shutil.copy(shipped("qwen3-30b-a3b", MODEL_FOLDER), tmp_path / "mine.yaml")
    assert [gpu.name for gpu in load_all_hardware(tmp_path)] == [
        gpu.name for gpu in load_all_hardware()
    ]
    h100 = load_hardware("h100-sxm")
    assert load_relatives([h100], tmp_path) == load_relatives([h100])


def test_relatives_are_those_that_may_lend(tmp_path: Path) -> None:
    # H100 NVL, H100 PCIe and H20-3e state no constants; the GPU itself lends itself nothing.
    found = {gpu.name for gpu in load_relatives([load_hardware("h100-sxm")])}
    assert found == {"h200", "h20", "h800"}
    assert {gpu.name for gpu in load_relatives([load_hardware("rtx-4090")])} == {"l40s"}
    both = [load_hardware("h100-sxm"), load_hardware("h200")]
    assert {"h100-sxm", "h200"} <= {gpu.name for gpu in load_relatives(both)}
    shutil.copy(shipped("h200"), tmp_path / "mine.yaml")
    assert len(load_relatives([load_hardware("h100-sxm")], tmp_path)) == 4


def shipped(name: str, folder: str = HARDWARE_FOLDER) -> Path:
    (path,) = (one for one in shipped_files(folder) if one.stem == name)
    return path


def test_what_a_path_leads_to_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.json")
    (tmp_path / "dangling.yaml").symlink_to("none")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").symlink_to("/dev/zero")
    for name, reason in (
        ("p.json", "is a named pipe"), ("dangling.yaml", "a link to nothing"),
        ("loop.yaml", "levels of symbolic links"), ("folder", "is a device"),
        ("x" * 300 + ".json", "File name too long"), ("p.json/x.json", "no such file"),
        ("a\udcff.yaml", "no such file or folder"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=reason):
            load_model(str(tmp_path / name))
    with pytest.raises(SpecError, match="no such user"):
        load_model("~nosuchuser/x.json")


@pytest.mark.parametrize("name", ["\ud800", "a/\ud800.yaml"])
@pytest.mark.parametrize("load", [load_model, load_hardware])
def test_half_a_surrogate_pair_is_one_line(load: Callable[[str], object], name: str) -> None:
    with pytest.raises(SpecError, match="is not a path") as caught:
        load(name)
    str(caught.value).encode()
    assert "\n" not in str(caught.value)


def test_a_folder_of_specs_is_searched_within_bounds(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--spec-dir .*none: no such folder"):
        load_model("llama-3.1-8b", spec_dir=tmp_path / "none")
    assert load_model("llama-3.1-8b", spec_dir=tmp_path).name == "llama-3.1-8b"
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match=r"pipe\.yaml: cannot be read: is a named pipe"):
        load_hardware("no-such-gpu", spec_dir=tmp_path)
    (tmp_path / "pipe.yaml").unlink()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(SpecError, match="levels of symbolic links"):
        load_all_hardware(tmp_path)
    (tmp_path / "loop.yaml").unlink()
    (tmp_path / "large.yaml").write_bytes(bytes(3 * 2**20))
    with pytest.raises(SpecError, match="more than 2 MiB of YAML"):
        load_all_hardware(tmp_path)
    (tmp_path / "large.yaml").unlink()
    for number in range(1_001):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(SpecError, match="more than 1,000 files"):
        load_hardware("no-such-gpu", spec_dir=tmp_path)


def test_many_errors_in_one_file_are_counted_not_compared(write) -> None:  # type: ignore[no-untyped-def]
    wrong = "layer_order: [" + "x, " * 20_000 + "]\n"
    with pytest.raises(
        SpecError, match=r"20,000 keys are wrong: layer_order\.0: 'x'.*and 19,99\d more"
    ):
        load_model(write(GOOD + wrong))
