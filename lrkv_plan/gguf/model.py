"""The keys and tensors of a GGUF file as a model.

Which layers attend, recur or do neither is read from the tensors that they have; widths from keys
and shapes, which must agree. Which layers slide, where the file does not say it, is code of
llama.cpp (``load_arch_hparams`` in src/models, read 2026-08-19); so are the sizes of recurrent
states (``n_embd_r`` and ``n_embd_s`` in llama-hparams.cpp), which it keeps in float32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.gguf.files import model_name, read_parts
from lrkv_plan.gguf.header import GgufHeader, GgufTensor
from lrkv_plan.huggingface.convert import source_of
from lrkv_plan.schema import validate
from lrkv_plan.specs.model import ModelSpec

MAX_LAYERS = 10_000
MAX_WIDTH = 4_194_304
# Every layer attends to everything, or keeps a state that the keys below size.
_PLAIN = frozenset({
    "llama", "deci", "falcon", "grok", "gpt2", "gptj", "gptneox", "mpt", "baichuan",
    "starcoder", "refact", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3",
    "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "phi2", "phi3",
    "phimoe", "plamo", "plamo2", "codeshell", "orion", "internlm2", "minicpm", "minicpm3",
    "gemma", "starcoder2", "mamba", "mamba2", "jamba", "falcon-h1", "xverse", "command-r",
    "dbrx", "olmo", "olmoe", "openelm", "arctic", "deepseek", "deepseek2", "chatglm", "glm4",
    "glm4moe", "bitnet", "jais", "nemotron", "nemotron_h", "nemotron_h_moe", "exaone", "rwkv6",
    "rwkv6qwen2", "rwkv7", "arwkv7", "granite", "granitemoe", "granitehybrid", "plm",
    "bailingmoe", "bailingmoe2", "dots1", "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe",
    "hunyuan-dense", "smollm3", "lfm2", "lfm2moe", "seed_oss", "grovemoe", "apertus",
    "minimax-m2", "mistral3", "kimi-linear", "maincoder", "pangu-embedded", "mistral4",
    "deepseek32", "glm-dsa",
})  # fmt: skip
# Architecture -> the period of its windows: layers are full at its end, or at its start.
_PERIODS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "llama4": 4, "exaone4": 4,
    "exaone-moe": 4, "olmo2": 4, "afmoe": 4, "plamo3": 8, "smallthinker": 4, "laguna": 4,
    "cohere2moe": 4, "mellum": 4, "muse-glimmer": 4,
}  # fmt: skip
_FULL_FIRST = frozenset({"smallthinker", "laguna", "cohere2moe"})
# These say of each layer whether it slides.
_LISTED = frozenset({"gemma4", "mimo2", "step35"})
# Where the file states no window but the code has one.
_WINDOWS = {"gemma2": 4096, "exaone-moe": 128}
_CHUNK = {"llama4": 8192}  # whatever its key says, unless that is 0
# A tensor whose name begins so makes a layer recurrent.
_RECURRENT = ("ssm_", "shortconv.", "time_mix_")
_STATE_SCALAR_BYTES = 4
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(.+)")
# What most of the bytes are in -> the format whose measured kernels stand for it.
_FORMATS = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8_0": "q8_0", "q6_k": "q6_k",
    "q5_k": "q5_k_m", "q5_0": "q5_k_m", "q5_1": "q5_k_m", "q4_k": "q4_k_m", "q4_0": "q4_0",
    "mxfp4": "mxfp4", "nvfp4": "nvfp4",
}  # fmt: skip
_NEAREST = "q4_k_s"


def import_gguf(path: Path) -> ModelSpec:
    """The model of a GGUF file, of a split one, or of a folder that holds one.

    Raises
    ------
    SpecError
        If the file cannot be read, is no language model, or says too little of its layers.
    """
    return _Importer(read_parts(path)).model()


@dataclass
class _Importer:
    header: GgufHeader
    remarks: list[str] = field(default_factory=list)
    architecture: str = ""

    def model(self) -> ModelSpec:
        self.architecture = self._architecture()
        n_blocks = self._whole("block_count", most=MAX_LAYERS)
        n_drafts = self._whole("nextn_predict_layers", default=0, least=0, most=n_blocks - 1)
        blocks = self._blocks(n_blocks)
        n_layers = n_blocks - n_drafts
        windows = self._windows(n_layers)
        shared = self._first_that_reuses(n_layers)
        layers = [
            self._layer(index, blocks[index], windows[index], reuses=index >= shared)
            for index in range(n_layers)
        ]
        distinct: list[dict[str, Any]] = []
        order = []
        for layer in layers:
            if layer not in distinct:
                distinct.append(layer)
            order.append(distinct.index(layer))
        groups = [{"count": order.count(i), **layer} for i, layer in enumerate(distinct)]
        embedding = self.header.tensors.get("token_embd.weight")
        data: dict[str, Any] = {
            "name": model_name(self.header.path), "model_dim": self._dim(),
            "vocab_size": None if embedding is None else embedding.shape[-1],
            "tied_embeddings": "output.weight" not in self.header.tensors,
            "max_context_tokens": self._whole("context_length", most=10**12, default=None),
            "weight_dtype": self._weight_format(), "draft_layers": n_drafts,
            "norms": self._norms(blocks[:n_layers]), "layers": groups,
            "remarks": tuple(self.remarks),
            "source": source_of(self.header.path),
        }  # fmt: skip
        if len(groups) > 1:
            data["layer_order"] = order
        return validate(ModelSpec, data, self.header.path)

    def _architecture(self) -> str:
        found = self.header.keys.get("general.architecture")
        kind = self.header.keys.get("general.type", "model")
        if not isinstance(found, str):
            raise self._error("states no general.architecture")
        if kind != "model" or found == "clip":
            raise self._error(f"is a file of kind {shown(kind)} ({found}), no language model")
        if found not in _PLAIN and found not in _PERIODS and found not in _LISTED:
            raise self._error(
                f"architecture {shown(found)}: what its layers keep is not known here; import the "
                "config.json that it was made from, and give its size with --weights"
            )
        return found

    def _error(self, text: str) -> SpecError:
        return SpecError(f"{self.header.path}: {text}")

    def _key(self, name: str, default: Any = None) -> Any:
        return self.header.keys.get(f"{self.architecture}.{name}", default)

    def _whole(self, name: str, *, most: int, least: int = 1, default: Any = ...) -> Any:
        value = self._key(name, default)
        if value is ...:
            raise self._error(f"{self.architecture}.{name} is missing")
        if value is default:
            return default
        return self._bounded(name, value, least, most)

    def _bounded(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._error(
                f"{self.architecture}.{name} {shown(value)}: must be a whole number from {least} "
                f"to {most:,}"
            )
        return value

    def _of_layer(self, name: str, layer: int, default: Any = ...) -> Any:
        """A key that is one number, or a list with one per layer."""
        value = self._key(name)
        if not isinstance(value, tuple):
            return self._whole(name, least=0, most=MAX_WIDTH, default=default)
        if layer >= len(value):
            raise self._error(f"{self.architecture}.{name} has {len(value)} values, one too few")
        return self._bounded(name, value[layer], 0, MAX_WIDTH)

    def _dim(self) -> int:
        found: int = self._whole("embedding_length", most=MAX_WIDTH)
        return found

    def _blocks(self, n_blocks: int) -> list[dict[str, GgufTensor]]:
        blocks: list[dict[str, GgufTensor]] = [{} for _ in range(n_blocks)]
        for name, tensor in self.header.tensors.items():
            found = _BLOCK.fullmatch(name)
            if found is None:
                continue
            if int(found[1]) >= n_blocks:
                raise self._error(f"tensor {shown(name)} is of none of its {n_blocks} blocks")
            blocks[int(found[1])][found[2]] = tensor
        empty = [index for index, block in enumerate(blocks) if not block]
        if empty:
            raise self._error(f"block {empty[0]} of {n_blocks} has no tensors")
        return blocks

    def _first_that_reuses(self, n_layers: int) -> int:
        """The first layer that reads the rows of an earlier one."""
        shared = self._whole("attention.shared_kv_layers", default=0, least=0, most=n_layers - 1)
        if self.architecture == "gemma3n" and not shared:
            shared = max(0, n_layers - 20)  # its code's constant
        return int(n_layers - shared)

    def _windows(self, n_layers: int) -> list[int | None]:
        """The window of each layer, None for those that attend to everything."""
        name, architecture = "attention.sliding_window", self.architecture
        if architecture in _PLAIN and architecture != "lfm2":
            return [None] * n_layers  # its code does not read the key
        window = self._whole(name, least=0, most=2**40, default=_WINDOWS.get(architecture, 0))
        if architecture in _CHUNK:
            window = _CHUNK[architecture] if self._key(name) != 0 else 0
        if architecture == "exaone4" and n_layers != 64:  # the 32B model alone slides
            window = 0
        if not window:
            return [None] * n_layers
        if architecture == "lfm2":
            return [window] * n_layers
        pattern = self._key(f"{name}_pattern", _PERIODS.get(architecture))
        if isinstance(pattern, tuple):
            if len(pattern) < n_layers:
                raise self._error(f"{architecture}.{name}_pattern has {len(pattern)} values")
            return [window if pattern[index] else None for index in range(n_layers)]
        if pattern is None:
            raise self._error(f"{architecture}.{name}_pattern is missing: which layers slide?")
        period = self._bounded(f"{name}_pattern", pattern, 1, MAX_LAYERS)
        full = 0 if architecture in _FULL_FIRST else period - 1
        return [None if index % period == full else window for index in range(n_layers)]

    def _layer(
        self, index: int, block: dict[str, GgufTensor], window: int | None, *, reuses: bool
    ) -> dict[str, Any]:
        is_recurrent = any(name.startswith(_RECURRENT) for name in block)
        attends = "attn_k.weight" in block or "attn_kv_a_mqa.weight" in block
        attends |= reuses and "attn_q.weight" in block
        attends |= "attn_qkv.weight" in block and not is_recurrent
        layer: dict[str, Any] = {"feed_forward": self._feed_forward(index, block)}
        if attends:
            layer["attention"] = self._attention(index, block, window is not None, reuses)
            if window is not None:
                kind = "chunked" if self.architecture in _CHUNK else "sliding"
                layer |= {"window_tokens": window, "window_kind": kind}
            if reuses:
                layer["reuses_cache"] = True
            layer |= self._index(block)
        elif any(name.startswith("attn_q.") for name in block):
            raise self._error(f"block {index} has queries, but no keys that are known")
        if is_recurrent:
            layer["state"] = self._state(index)
        return layer

    def _index(self, block: dict[str, GgufTensor]) -> dict[str, Any]:
        """Keys of a sparse index, one head, which llama.cpp keeps as the cache's keys are by
        default, in 16 bit (llama-kv-cache-dsa); only layers with an index of their own have one.
        """
        if "indexer.attn_k.weight" not in block:
            return {}
        width = self._whole("attention.indexer.key_length", most=MAX_WIDTH)
        chosen = self._whole("attention.indexer.top_k", most=10**12, default=None)
        key = {"name": "index_key", "bytes_per_copy": 2 * width, "sharding": "replicated"}
        return {"index": (key,), **({} if chosen is None else {"selected_tokens": chosen})}

    def _attention(
        self, index: int, block: dict[str, GgufTensor], slides: bool, reuses: bool
    ) -> dict[str, Any]:
        heads = self._of_layer("attention.head_count", index)
        if not heads:
            raise self._error(f"block {index} has keys, but attention.head_count is 0")
        common = {"n_heads": heads, "output_bias": "attn_output.bias" in block}
        if "attn_kv_a_mqa.weight" in block:
            return {**common, **self._latent(block)}
        kv_heads = self._of_layer("attention.head_count_kv", index, heads)
        kind = "_swa" if slides and self._key("attention.key_length_swa") is not None else ""
        default = max(1, self._dim() // heads)
        width, value_width = (
            self._whole(f"attention.{what}_length{kind}", most=MAX_WIDTH, default=default)
            for what in ("key", "value")
        )
        if not kv_heads:
            raise self._error(f"block {index} has keys, but attention.head_count_kv is 0")
        if not reuses:
            self._check_rows(index, block, heads, kv_heads, width, value_width)
        family = "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
        return {
            **common, "family": family, "n_kv_heads": kv_heads, "head_dim": width,
            "v_head_dim": value_width, "qkv_bias": "attn_k.bias" in block,
            "qk_norm": "attn_k_norm.weight" in block, "sinks": "attn_sinks.weight" in block,
            "value_from_key": "attn_k.weight" in block and "attn_v.weight" not in block,
        }  # fmt: skip

    def _check_rows(
        self, index: int, block: dict[str, GgufTensor], heads: int, kv_heads: int, width: int,
        value_width: int,
    ) -> None:  # fmt: skip
        """The key projection must make the rows that the keys of the file describe."""
        keys, fused = block.get("attn_k.weight"), block.get("attn_qkv.weight")
        rows = kv_heads * width if keys else (heads + kv_heads) * width + kv_heads * value_width
        found = keys or fused
        if found is not None and found.shape[-1] != rows:
            raise self._error(
                f"block {index} makes {found.shape[-1]:,} scalars of keys, where "
                f"attention.head_count_kv and key_length say {rows:,}"
            )

    def _latent(self, block: dict[str, GgufTensor]) -> dict[str, Any]:
        """MLA; a file without the split matrices makes its engine keep every head's rows."""
        latent = self._whole("attention.kv_lora_rank", most=MAX_WIDTH)
        rope = self._whole("rope.dimension_count", least=0, most=MAX_WIDTH)
        if block["attn_kv_a_mqa.weight"].shape[-1] != latent + rope:
            raise self._error(f"attn_kv_a_mqa makes no rows of {latent} + {rope} scalars")
        is_split = "attn_k_b.weight" in block
        kind = "_mla" if is_split and self._key("attention.key_length_mla") is not None else ""
        width, value_width = (
            self._whole(f"attention.{what}_length{kind}", most=MAX_WIDTH)
            for what in ("key", "value")
        )
        if width <= rope:
            raise self._error(
                f"attention.key_length{kind} {width} is no wider than its rotary part"
            )
        return {
            "family": "mla", "latent_dim": latent, "rope_dim": rope, "nope_dim": width - rope,
            "v_head_dim": value_width, "cached_form": "latent" if is_split else "heads",
            "query_latent_dim": self._whole("attention.q_lora_rank", most=MAX_WIDTH, default=None)
            if "attn_q_a.weight" in block else None,
        }  # fmt: skip

    def _feed_forward(self, index: int, block: dict[str, GgufTensor]) -> dict[str, Any]:
        experts = block.get("ffn_down_exps.weight")
        n_apart = sum(re.fullmatch(r"ffn_down\.\d+\.weight", name) is not None for name in block)
        dense = block.get("ffn_down.weight")
        if experts is None and not n_apart:
            if dense is None:
                return {"kind": "none"}
            return {
                "kind": "dense", "hidden_dim": dense.shape[0], "bias": "ffn_down.bias" in block,
                "gated": self._is_gated(block, dense),
            }  # fmt: skip
        if experts is not None and len(experts.shape) != 3:
            raise self._error(f"block {index}: its experts have no third dimension")
        n_experts = experts.shape[2] if experts is not None else n_apart
        width = (experts or block["ffn_down.0.weight"]).shape[0]
        shared = block.get("ffn_down_shexp.weight")
        gates = ("ffn_gate_exps.weight", "ffn_gate_up_exps.weight", "ffn_gate.0.weight")
        return {
            "kind": "experts", "hidden_dim": width, "n_experts": n_experts,
            "experts_per_token": self._whole("expert_used_count", most=n_experts),
            "shared_hidden_dim": 0 if shared is None else shared.shape[0],
            "dense_hidden_dim": 0 if dense is None else dense.shape[0],
            "gated": any(name in block for name in gates),
            "bias": "ffn_down_exps.bias" in block,
            "router_bias": "exp_probs_b.bias" in block or "ffn_gate_inp.bias" in block,
            "shared_gate": "ffn_gate_inp_shexp.weight" in block,
        }  # fmt: skip

    def _is_gated(self, block: dict[str, GgufTensor], down: GgufTensor) -> bool:
        """Gate apart, or fused with the up-projection (phi3, chatglm)."""
        up = block.get("ffn_up.weight")
        return "ffn_gate.weight" in block or (up is not None and up.shape[-1] == 2 * down.shape[0])

    def _state(self, index: int) -> list[dict[str, Any]]:
        """What llama.cpp keeps of one sequence in a recurrent layer: columns, and a state."""
        columns, state = self._state_scalars(index)
        sizes = {"conv_state": columns, "recurrent_state": state}
        return [
            {
                "name": name, "bytes_per_copy": scalars * _STATE_SCALAR_BYTES,
                "scalar_bytes": _STATE_SCALAR_BYTES,
            }
            for name, scalars in sizes.items()
            if scalars
        ]  # fmt: skip

    def _state_scalars(self, index: int) -> tuple[int, int]:
        dim, heads = self._dim(), self._of_layer("attention.head_count", index, 0)
        if (size := self._whole("wkv.head_size", most=MAX_WIDTH, default=None)) is not None:
            shifts = self._whole("token_shift_count", most=16, default=2)
            return shifts * dim, dim * size
        if (length := self._whole("shortconv.l_cache", most=MAX_WIDTH, default=None)) is not None:
            return dim * (length - 1), 0
        kernel = self._whole("ssm.conv_kernel", most=MAX_WIDTH)
        if (width := self._whole("kda.head_dim", most=MAX_WIDTH, default=None)) is not None:
            return 3 * (kernel - 1) * heads * width, width * width * heads
        inner = self._whole("ssm.inner_size", most=MAX_WIDTH)
        state = self._whole("ssm.state_size", most=MAX_WIDTH)
        groups = self._whole("ssm.group_count", least=0, most=MAX_WIDTH, default=0)
        return (kernel - 1) * (inner + 2 * groups * state), state * inner

    def _norms(self, blocks: list[dict[str, GgufTensor]]) -> dict[str, Any]:
        def most(*names: str) -> int:
            return max(sum(f"{name}.weight" in block for name in names) for block in blocks)

        return {
            "per_mixer": most("attn_norm", "attn_norm_2", "post_attention_norm"),
            "per_feed_forward": most("ffn_norm", "post_ffw_norm"),
            "bias": any("attn_norm.bias" in block for block in blocks),
            "final": "output_norm.weight" in self.header.tensors,
            "embedding": "token_embd_norm.weight" in self.header.tensors,
        }

    def _weight_format(self) -> str:
        """The format that most of the layers' bytes are in, or one whose kernels stand for it."""
        held: dict[str, int] = {}
        for name, tensor in self.header.tensors.items():
            if len(tensor.shape) > 1 and name.startswith("blk."):
                held[tensor.type_name] = held.get(tensor.type_name, 0) + tensor.n_bytes
        main = max(held, key=lambda name: held[name], default="f16")
        if main not in _FORMATS:
            self.remarks.append(f"matrices in {main}: their kernels are timed as {_NEAREST}'s")
        return _FORMATS.get(main, _NEAREST)
