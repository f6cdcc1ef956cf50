"""GGUF files as models: layers, cache and exact weight bytes by hand; hostile files by one line."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlanError, SpecError
from lrkv_plan.gguf.files import gguf_bytes
from lrkv_plan.gguf.model import import_gguf
from lrkv_plan.gguf_mixtures import BLOCK_TYPES
from lrkv_plan.memory.cache import bytes_per_token, state_bytes_per_sequence
from tests.gguf.written import F16, F32, Q4_K, Q8_0, attention_block, header, llama, text, write

# A layer of the small llama in bytes: Q4_K has 144 per 256, Q8_0 34 per 32, F32 4.
LAYER_BYTES = (
    2 * 256 * 4 + (2 * 256 * 256 + 256 * 128 + 3 * 256 * 512) // 256 * 144 + 256 * 128 // 32 * 34
)
WEIGHT_BYTES = 2 * LAYER_BYTES + 256 * 1000 // 256 * 144 + 256 * 4


def renamed(keys: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        key.replace("llama.", f"{name}.", 1) if key.startswith("llama.") else key: value
        for key, value in keys.items()
    } | {"general.architecture": name}


def test_layers_cache_and_bytes_of_a_small_llama(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", *llama())
    model = import_gguf(path)
    assert gguf_bytes(path) == WEIGHT_BYTES
    assert bytes_per_token(model) == 2 * 2 * (64 + 64) * 2  # layers, heads, widths, bf16
    assert (model.name, model.weight_dtype, model.vocab_size) == ("small", "q4_k_m", 1000)
    assert model.tied_embeddings
    assert model.layers[0].count == 2


def test_capacity_takes_the_exact_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", *llama())
    detail = lrkv_plan.capacity(str(path), gpu="rtx-3090", engine="llama_cpp", detail=True)
    weights = next(row for row in detail.rows if row["term"] == "weights")
    assert weights["n_bytes"] == -WEIGHT_BYTES
    rows = lrkv_plan.capacity(str(path), gpu="rtx-3090", engine="llama_cpp").rows
    assert rows[0]["model"] == "small"


def test_stages_of_a_pipeline_hold_their_share_of_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", *llama(n_layers=4))
    told = {"gpu": "rtx-3090", "engine": "llama_cpp", "detail": True}
    whole, halves = (
        [-row["n_bytes"] for row in lrkv_plan.capacity(str(path), pp_size=n, **told).rows
         if row["term"] == "weights"] for n in (1, 2)
    )  # fmt: skip
    assert whole == [gguf_bytes(path)]
    # Three layers, and one with the table as head; its copy for tokens is the host's.
    assert whole[0] <= sum(halves) <= whole[0] + 4  # each is rounded up twice
    last = halves[1] - halves[0] // 3
    assert 0 < last < halves[1] < whole[0]


def test_a_folder_and_a_split_model(tmp_path: Path) -> None:
    keys, tensors = llama()
    halves = dict(list(tensors.items())[:9]), dict(list(tensors.items())[9:])
    split = {"split.count": 2, "split.tensors.count": len(tensors)}
    for number, half in enumerate(halves, 1):
        name = f"big-{number:05}-of-00002.gguf"
        write(tmp_path / name, {**keys, **split} if number == 1 else {"split.no": 1}, half)
    write(tmp_path / "mmproj-f16.gguf", {"general.architecture": "clip"}, {})
    for argument in (
        tmp_path,
        tmp_path / "big-00001-of-00002.gguf",
        tmp_path / "big-00002-of-00002.gguf",
    ):
        assert gguf_bytes(argument) == WEIGHT_BYTES
        assert lrkv_plan.load_model(argument).name == "big"
    (tmp_path / "big-00002-of-00002.gguf").unlink()
    with pytest.raises(SpecError, match="1 of 2 parts missing: big-00002"):
        import_gguf(tmp_path)


def test_a_folder_with_two_models_names_them(tmp_path: Path) -> None:
    for name in ("q4", "q8"):
        write(tmp_path / f"{name}.gguf", *llama())
    with pytest.raises(SpecError, match=r"several models \(q4, q8\); name one"):
        import_gguf(tmp_path)


def test_windows_by_the_code_of_an_architecture(tmp_path: Path) -> None:
    keys, tensors = llama(n_layers=6)
    keys = renamed(keys, "gemma3") | {"gemma3.attention.sliding_window": 512}
    model = import_gguf(write(tmp_path / "g.gguf", keys, tensors))
    assert [group.window_tokens for group in model.layers] == [512, None]
    assert model.layer_order == (0, 0, 0, 0, 0, 1)
    listed = keys | {"gemma3.attention.sliding_window_pattern": [0, 1, 1, 1, 1, 1]}
    model = import_gguf(write(tmp_path / "l.gguf", listed, tensors))
    assert model.layer_order == (0, 1, 1, 1, 1, 1)


def test_recurrent_layers_keep_columns_and_state_in_float32(tmp_path: Path) -> None:
    # Gated DeltaNet as in 27B: 16 key heads and 48 value heads of 128, 4 columns: 149.62 MiB in 48
    # layers (a printed line), so 3,268,608 bytes a layer: (3 x (6,144 + 2 x 2,048) + 128 x 6,144) x 4.
    keys, tensors = llama(n_layers=4)
    keys = renamed(keys, "qwen35") | {
        "qwen35.ssm.conv_kernel": 4, "qwen35.ssm.inner_size": 6144, "qwen35.ssm.state_size": 128,
        "qwen35.ssm.group_count": 16, "qwen35.ssm.time_step_rank": 48,
    }  # fmt: skip
    for layer in (0, 1, 2):
        for name in attention_block():
            if name.startswith("attn_") and name != "attn_norm.weight":
                del tensors[f"blk.{layer}.{name}"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = ((256, 10_240), Q4_K)
        tensors[f"blk.{layer}.ssm_conv1d.weight"] = ((4, 10_240), F32)
    model = import_gguf(write(tmp_path / "h.gguf", keys, tensors))
    assert [(g.count, bool(g.state), g.attention is None) for g in model.layers] == [
        (3, True, True), (1, False, False)
    ]  # fmt: skip
    assert state_bytes_per_sequence(model) == 3 * 3_268_608
    assert round(48 * 3_268_608 / 2**20, 2) == 149.62


def test_drafts_behind_the_layers_are_none_of_them(tmp_path: Path) -> None:
    keys, tensors = llama(n_layers=3)
    keys["llama.nextn_predict_layers"] = 1
    model = import_gguf(write(tmp_path / "m.gguf", keys, tensors))
    assert (model.n_layers, model.draft_layers) == (2, 1)


@pytest.mark.parametrize(("split", "scalars"), [(True, 512 + 64), (False, 4 * (192 + 128))])
def test_latents_where_the_file_has_the_split_matrices(
    tmp_path: Path, split: bool, scalars: int
) -> None:
    keys, tensors = llama(n_layers=1)
    keys = renamed(keys, "deepseek2") | {
        "deepseek2.attention.kv_lora_rank": 512, "deepseek2.rope.dimension_count": 64,
        "deepseek2.attention.key_length": 192, "deepseek2.attention.value_length": 128,
    }  # fmt: skip
    del tensors["blk.0.attn_k.weight"], tensors["blk.0.attn_v.weight"]
    tensors["blk.0.attn_kv_a_mqa.weight"] = ((256, 576), F16)
    tensors["blk.0.attn_k_b.weight" if split else "blk.0.attn_kv_b.weight"] = ((128, 512, 4), F16)
    model = import_gguf(write(tmp_path / "d.gguf", keys, tensors))
    assert bytes_per_token(model) == 2 * scalars


def test_index_keys_where_a_block_has_an_index_of_its_own(tmp_path: Path) -> None:
    """128 scalars in 16 bit in the first block; the second takes over its choice."""
    keys, tensors = llama()
    keys = renamed(keys, "deepseek32") | {
        "deepseek32.attention.indexer.key_length": 128, "deepseek32.attention.indexer.top_k": 2048,
    }  # fmt: skip
    tensors["blk.0.indexer.attn_k.weight"] = ((256, 128), F16)
    own, shared = import_gguf(write(tmp_path / "m.gguf", keys, tensors)).layers
    assert [one.bytes_per_copy for one in own.index] == [256]
    assert (own.selected_tokens, shared.index) == (2048, ())


def test_experts_are_counted_with_their_number(tmp_path: Path) -> None:
    keys, tensors = llama(n_layers=1)
    keys |= {"llama.expert_count": 8, "llama.expert_used_count": 2}
    for name in ("gate", "up", "down"):
        del tensors[f"blk.0.ffn_{name}.weight"]
        tensors[f"blk.0.ffn_{name}_exps.weight"] = ((256, 256, 8), Q4_K)
    block = import_gguf(write(tmp_path / "e.gguf", keys, tensors)).layers[0].feed_forward
    assert block is not None
    assert (block.kind, block.n_experts, block.hidden_dim) == ("experts", 8, 256)


def change(**keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found, tensors = llama()
    return found | {name.replace("__", "."): value for name, value in keys.items()}, tensors


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (change(general__architecture="new_one"), "architecture 'new_one'"),
        (change(general__architecture="clip"), "no language model"),
        (change(general__type="adapter"), "no language model"),
        (change(llama__attention__head_count_kv=4), "makes 128 scalars of keys"),
        (change(llama__block_count=3), "block 2 of 3 has no tensors"),
        (change(llama__block_count=1), "is of none of its 1 blocks"),
        (change(llama__block_count=2**31), "from 1 to 10,000"),
        (change(llama__embedding_length=0), "embedding_length 0"),
        (change(llama__attention__head_count="many"), "must be a whole number"),
        (change(general__alignment=0), "general.alignment 0"),
    ],
)
def test_what_a_file_says_and_cannot_be_is_told(
    tmp_path: Path, made: tuple[dict[str, Any], dict[str, Any]], says: str
) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        import_gguf(write(tmp_path / "x.gguf", *made))
    assert "\n" not in caught.value.message


def test_a_file_cut_anywhere_in_its_header_is_told(tmp_path: Path) -> None:
    head, _ = header(*llama())
    path = tmp_path / "cut.gguf"
    for size in range(0, len(head), 37):
        path.write_bytes(head[:size])
        with pytest.raises(SpecError):
            import_gguf(path)


def test_an_unfinished_download_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", *llama())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1_000)
    with pytest.raises(SpecError, match="but its tensors end at"):
        import_gguf(path)


HUGE = 2**62
_START = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGML",
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        _START + struct.pack("<QQ", HUGE, 1),
        _START + struct.pack("<QQ", 1, HUGE),
        _START + struct.pack("<QQQ", 0, 1, HUGE),
        _START + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, HUGE),
        _START + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, HUGE),
        _START + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1),
        _START + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<I", 99),
        _START + struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<IQIQ", 1, HUGE, 0, 0),
        _START + struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 12, 0),
        _START + struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 77, 0),
        _START + struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<I", 2**31),
    ],
)
def test_hostile_headers_end_soon_and_in_a_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    for end in (0, 2**36):  # as it is, and with zeros without end behind it
        with path.open("r+b") as file:
            file.truncate(max(end, len(data)))
        begun = time.process_time()
        with pytest.raises(PlanError) as caught:
            lrkv_plan.load_model(path)
        assert time.process_time() - begun < 3
        assert len(caught.value.message) < 600


def test_a_vocabulary_of_any_size_is_passed_over(tmp_path: Path) -> None:
    keys, tensors = llama()
    keys["tokenizer.ggml.tokens"] = [f"token {n}" for n in range(262_144)]
    path = write(tmp_path / "v.gguf", keys, tensors)
    begun = time.process_time()
    assert import_gguf(path).n_layers == 2
    assert time.process_time() - begun < 2


def test_block_types_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {
        int(number): (width, n_bytes) for number, (width, n_bytes) in gguf.GGML_QUANT_SIZES.items()
    }
    ours = {block.number: (block.width, block.n_bytes) for block in BLOCK_TYPES.values()}
    shared = theirs.keys() & ours.keys()
    assert len(shared) >= 30
    assert {n: ours[n] for n in shared} == {n: theirs[n] for n in shared}


def test_a_file_of_the_gguf_package_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 1), (writer.add_embedding_length, 64),
        (writer.add_context_length, 128), (writer.add_head_count, 2), (writer.add_head_count_kv, 1),
    ):  # fmt: skip
        add(value)
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert gguf_bytes(path) == 2 * (2 * 64 * 64 + 2 * 32 * 64)
    assert bytes_per_token(import_gguf(path)) == 2 * 2 * 32


def test_q8_file_is_timed_as_q8(tmp_path: Path) -> None:
    keys, tensors = llama()
    tensors = {
        name: (shape, Q8_0 if len(shape) > 1 else F32) for name, (shape, _) in tensors.items()
    }
    assert import_gguf(write(tmp_path / "q.gguf", keys, tensors)).weight_dtype == "q8_0"


def test_damaged_headers_end_in_a_model_or_a_line(tmp_path: Path) -> None:
    keys, tensors = llama()
    head, n_bytes = header(keys, tensors)
    chance = random.Random(20_261_201)
    path = tmp_path / "damaged.gguf"
    ends, longest = {"read": 0, "told": 0}, 0
    for _ in range(600):
        damaged = bytearray(head)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(4, len(damaged))
            damaged[at] = chance.choice((0, 1, 255, chance.randrange(256)))
        path.write_bytes(bytes(damaged))
        with path.open("r+b") as file:
            file.truncate(len(head) + n_bytes + 64)
        begun = time.process_time()
        try:
            lrkv_plan.load_model(path)
            ends["read"] += 1
        except PlanError as error:
            ends["told"] += 1
            longest = max(longest, len(error.message))
        assert time.process_time() - begun < 3
    assert longest < 700
    assert min(ends.values()) > 50, ends
