"""A commented file to fill in: a person's own GPU or model, each key with what it decides."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.schema import PLACEHOLDER

_WIDTH = 96


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a file. ``example`` is YAML; ``blank`` that with placeholders for its figures.

    A key without ``blank`` is optional, and stands in the template as a comment.
    """

    name: str
    unit: str
    decides: str
    example: str
    blank: str | None = None

    @property
    def is_required(self) -> bool:
        """Whether the file is refused without it."""
        return self.blank is not None


GPU_KEYS = (
    Key(
        name="name", unit="text", example="my-gpu", blank=PLACEHOLDER,
        decides="What answers call it. A shipped GPU's name would keep that GPU from lending its "
        "kernel constants.",
    ),
    Key(
        name="title", unit="text", example="NVIDIA H100 SXM5 80 GB", blank=PLACEHOLDER,
        decides="The full name in reports. `validate` looks in it for the name that the driver "
        "gives the device.",
    ),
    Key(
        name="aliases", unit="names", example="[my-card]",
        decides="Other names, in small letters, that --gpu takes with --spec-dir.",
    ),
    Key(
        name="vendor", unit="name", example="nvidia", blank=PLACEHOLDER,
        decides="Engines' memory rules ask for it: nvidia, amd, intel, generic (a CPU), or any "
        "other, such as huawei.",
    ),
    Key(
        name="generation", unit="name", example="hopper", blank=PLACEHOLDER,
        decides="GPUs of one generation lend each other measured kernel constants, and vLLM's "
        "defaults ask for it. Shipped: ada, ampere, apple_m, ascend, battlemage, blackwell, "
        "blackwell-consumer, cdna3, cdna4, cpu, gaudi2, gaudi3, hopper, quyuan, tpu_v5e, tpu_v6e, "
        "turing, volta. Where none of a generation was measured, or for any other, times rest on "
        "the datasheet alone.",
    ),
    Key(
        name="takes_after", unit="names of GPUs", example="[h200]",
        decides="GPUs that lend their measured constants before others of the generation, or "
        "where the generation has none.",
    ),
    Key(
        name="mem_capacity_bytes", unit="bytes", example="80 GiB", blank=PLACEHOLDER,
        decides="Memory of one GPU: how much fits. GiB is 2**30 bytes, GB is 10**9; most cards "
        "sold as GB hold GiB.",
    ),
    Key(
        name="mem_visible_bytes", unit="bytes", example="79.19 GiB",
        decides="What torch or the engine prints as total memory, of which engines take their "
        "share. Without it the nominal size, less up to 3 %.",
    ),
    Key(
        name="mem_bandwidth_bytes_per_s", unit="bytes/s", example="3.35 TB/s", blank=PLACEHOLDER,
        decides="The datasheet's rate. Decode reads weights and cache at a share of it, so it "
        "decides most of a token's time.",
    ),
    Key(
        name="peak_flops_per_s", unit="FLOP/s, dense",
        example="{bf16: 989.4 TFLOP/s, fp32: 66.9 TFLOP/s, fp8: 1978.9 TFLOP/s}",
        blank=f"{{bf16: {PLACEHOLDER}}}",
        decides="Peak arithmetic by format: where a step is bound by arithmetic, and `roofline`. "
        "Dense: halve figures that a datasheet gives with sparsity. One format is enough (fp16 in "
        "bf16's place where there is none); known are fp32, tf32, bf16, fp16, fp8, int8, int4, "
        "fp4. `roofline` asks for bf16 and fp32 unless told otherwise.",
    ),
    Key(
        name="n_sm", unit="count", example="132",
        decides="Streaming multiprocessors or compute units. Kept for the reader.",
    ),
    Key(
        name="l2_bytes", unit="bytes", example="50 MiB",
        decides="Size of the L2 cache. Kept for the reader.",
    ),
    Key(
        name="link", unit="bytes/s, one way",
        example="{name: NVLink 4, bandwidth_bytes_per_s: 450 GB/s, n_gpus: 8, "
        "beyond: {name: ConnectX-7, bandwidth_bytes_per_s: 50 GB/s}}",
        decides="The link between GPUs, per GPU and direction (half of what is sold as the sum of "
        "both). Without it times of several GPUs rest on a measured GPU of the generation. n_gpus "
        "is how many one server or rack joins, beyond the network between those.",
    ),
    Key(
        name="host_link", unit="bytes/s, one way",
        example="{name: PCIe 5.0 x16, bandwidth_bytes_per_s: 64 GB/s}",
        decides="The link to the host's memory: how soon a context that was kept there "
        "(--kv-offload) is back. Without it that time is not known.",
    ),
    Key(
        name="unified_memory", unit="true or false", example="false",
        decides="Whether the host's memory is the GPU's, as on Apple silicon: then llama.cpp's "
        "embeddings, which are the host's, take of it too.",
    ),
    Key(
        name="board_power_w", unit="W", example="700",
        decides="Full board power: the energy of a token, at most.",
    ),
    Key(
        name="hourly_price", unit="USD",
        example="{usd: 2.5, provider: Example Cloud, kind: on-demand, read_on: 2026-11-30, "
        'url: "https://example.com/pricing"}',
        decides="What one GPU costs for an hour: cost per token and user. Only usd is needed; kind "
        "is on-demand, reserved, spot or own. --gpu-hour-usd states another.",
    ),
    Key(
        name="source", unit="where and when",
        example='[{url: "https://example.com/datasheet", read_on: 2026-11-30, note: all figures}]',
        decides="Where the figures were read: a url or a citation, and the date. Without it every "
        "answer says that none was given.",
    ),
)  # fmt: skip

MODEL_KEYS = (
    Key(
        name="name", unit="text", example="my-model", blank=PLACEHOLDER,
        decides="What answers call it.",
    ),
    Key(
        name="source", unit="where and when",
        example="[{citation: config.json of my-model, read_on: 2026-11-30}]",
        decides="Where the figures were read: a url or a citation, and the date. Without it every "
        "answer says that none was given.",
    ),
    Key(
        name="model_dim", unit="width", example="4096", blank=PLACEHOLDER,
        decides="Width of the residual stream (hidden_size in a config.json): weights.",
    ),
    Key(
        name="vocab_size", unit="tokens", example="128256",
        decides="Rows of the embedding: weights, and with them what is left for the cache.",
    ),
    Key(
        name="tied_embeddings", unit="true or false", example="false",
        decides="Whether the head shares the embedding's weights.",
    ),
    Key(
        name="head_bias", unit="true or false", example="false",
        decides="Whether the head has a bias.",
    ),
    Key(
        name="position_embeddings", unit="rows", example="2048",
        decides="Learned positions, as weights; rotary ones have none.",
    ),
    Key(
        name="max_context_tokens", unit="tokens", example="131072",
        decides="The longest context that the model was made for; a longer one is said.",
    ),
    Key(
        name="encoder_tokens", unit="tokens", example="1500",
        decides="Rows that cross-attention caches for a sequence (see cached_over below).",
    ),
    Key(
        name="weight_dtype", unit="format", example="bf16",
        decides="How the weights are stored: memory of the weights and the time to read them. "
        "Without it --weight-dtype or --weights is asked for.",
    ),
    Key(
        name="quantised_parts", unit="parts by format", example="{fp8: [attention, experts]}",
        decides="Which of attention, mixers (recurrent), feed_forward, experts, shared_experts a "
        "checkpoint in that format stores in it. Without it all that the format usually does.",
    ),
    Key(
        name="norms", unit="vectors of model_dim", example="{per_mixer: 1, per_feed_forward: 1}",
        decides="Normalisation weights before or after each attention and feed-forward block.",
    ),
    Key(
        name="draft_layers", unit="layers", example="1",
        decides="Layers of a built-in speculative draft, whose weights count.",
    ),
    Key(
        name="layers", unit="a list of equal layers",
        example="""
  - count: 32
    attention: {family: gqa, n_heads: 32, n_kv_heads: 8, head_dim: 128}
    feed_forward: {kind: dense, hidden_dim: 14336, gated: true}""",
        blank=f"""
  - count: {PLACEHOLDER}
    attention:
      family: {PLACEHOLDER}
      n_heads: {PLACEHOLDER}
      n_kv_heads: {PLACEHOLDER}
      head_dim: {PLACEHOLDER}
    # feed_forward: {{kind: dense, hidden_dim: 14336, gated: true}}""",
        decides="What each layer caches, holds and computes with; one item for each kind of layer. "
        "Families: gqa as below; mha and mqa without n_kv_heads; mla as {family: mla, n_heads: "
        "128, latent_dim: 512, rope_dim: 64, nope_dim: 128, v_head_dim: 128, query_latent_dim: "
        "1536}; lrkv as {family: lrkv, n_heads: 18, head_dim: 128, rank: 55}. An item may have "
        "window_tokens with window_kind (sliding or chunked), reuses_cache, and cached_over "
        "(encoder: cross-attention); a recurrent layer has state, the update that moves it, and "
        "its weights as matrices. feed_forward decides the weights: dense, or {kind: experts, "
        "hidden_dim: 14336, n_experts: 8, experts_per_token: 2, gated: true}.",
    ),
    Key(
        name="layer_order", unit="places in the list of layers", example="[0]",
        decides="The kind of each layer from the first to the last, where kinds alternate.",
    ),
    Key(
        name="weights", unit="matrices",
        example="[{name: per-layer embeddings, rows: 262144, cols: 8960, part: embeddings}]",
        decides="Weights outside the layers that no other key describes; a vector has one column.",
    ),
    Key(
        name="encoders", unit="parts with parameters",
        example="[{name: vision encoder and projector, n_params: 421290864}]",
        decides="Encoders beside the language model: weights, printed apart.",
    ),
    Key(
        name="mtp", unit="layers and matrices",
        example="{layers: [{count: 1, feed_forward: {kind: dense, hidden_dim: 14336, gated: true}, "
        "attention: {family: gqa, n_heads: 32, n_kv_heads: 8, head_dim: 128}}], "
        "weights: [{name: join, rows: 8192, cols: 4096}]}",
        decides="A built-in draft module, printed apart: engines load it only for speculation.",
    ),
    Key(
        name="extra_params", unit="parameters", example="400000000",
        decides="Weights outside the layers, such as a vision tower.",
    ),
    Key(
        name="media", unit="largest items of a vision encoder",
        example="{image_tokens: 16384, patches_per_token: 4, video_pair_tokens: 16384, "
        "encoder_dim: 1280}",
        decides="What vLLM's start-up profiles with images and videos, which the cache then lacks.",
    ),
    Key(
        name="uncounted_parts", unit="texts", example="[vision tower]",
        decides="Parts whose weights are not counted; answers then call their figures bounds.",
    ),
    Key(
        name="remarks", unit="texts", example="['rope scaling is not modelled']",
        decides="Assumptions, printed with every answer.",
    ),
)  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> None:
    """Refuse a name that a file or a command line could read otherwise.

    Raises
    ------
    UsageError
        If it holds anything but letters, digits, points, dashes and underscores.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"NAME {shown(name)}: write letters, digits, '.', '-' and '_', a letter or digit first"
        )


def template(
    keys: Sequence[Key], stated: Mapping[str, str], *, head: Sequence[str], like: str | None
) -> str:
    """The text of a file to fill in.

    Parameters
    ----------
    stated : values that are known already, as YAML, by key.
    head : what the file is for, a comment.
    like : the shipped file that ``stated`` is from.
    """
    parts = [_comment(" ".join(head))]
    if like is not None:
        parts[0] += "\n" + _comment(like)
    for key in keys:
        told = f"[{key.unit}] {key.decides}"
        value = stated.get(key.name, key.blank)
        if value is None:
            parts.append(f"{_comment(told)}\n# {key.name}: {key.example}")
            continue
        example = "" if key.name in stated or "\n" in key.example else f" Example: {key.example}"
        gap = "" if value.startswith("\n") else " "
        parts.append(f"{_comment(told + example)}\n{key.name}:{gap}{value}")
    return "\n\n".join(parts) + "\n"


def _comment(text: str) -> str:
    """Text as comment lines; only the first line starts with a capital or a bracket."""
    return textwrap.fill(
        text, _WIDTH, initial_indent="# ", subsequent_indent="#   ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def as_yaml(value: Any) -> str:
    """A value on one line, as YAML reads it back."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9)
    return text.removesuffix("...\n").strip()


def gpu_template(
    name: str, *, like: Mapping[str, Any] | None = None, like_name: str | None = None
) -> str:
    """A GPU's file to fill in; ``like`` is the content of the file whose figures it starts from.

    Measured constants, other names, source and price are the other GPU's own and stay behind.

    Examples
    --------
    >>> gpu_template("mine").splitlines()[-1]
    '# source: [{url: "https://example.com/datasheet", read_on: 2026-11-30, note: all figures}]'
    """
    check_name(name)
    own = ("name", "title", "aliases", "hourly_price", "source")
    known = {key.name for key in GPU_KEYS} - set(own)
    stated = {key: as_yaml(value) for key, value in (like or {}).items() if key in known}
    written = as_yaml(name)
    return template(
        GPU_KEYS,
        {"name": written, "title": written, **stated},
        head=_head("GPU", "--gpu", like is None),
        like=None
        if like is None
        else f"The figures are those of {like_name} (`lrkv-plan hardware show {like_name}` names "
        "their sources); change what differs. Its kernel constants stay its own: it lends "
        "them to GPUs of its generation, with a wider band.",
    )


def model_template(
    name: str, *, like: Mapping[str, str] | None = None, like_name: str | None = None
) -> str:
    """A model's file to fill in; ``like`` are the values of another model's file, as YAML.

    Examples
    --------
    >>> "model_dim: FILL_IN" in model_template("mine")
    True
    """
    check_name(name)
    stated = {key: text for key, text in (like or {}).items() if key not in ("name", "source")}
    return template(
        MODEL_KEYS,
        {"name": as_yaml(name), **stated},
        head=_head("model", "MODEL", like is None),
        like=None
        if like is None
        else f"The figures are those of {like_name} (`lrkv-plan models show {like_name}` names "
        "their sources); change what differs.",
    )


def _head(what: str, argument: str, is_blank: bool) -> tuple[str, ...]:
    fill = f" Fill in every {PLACEHOLDER}." if is_blank else ""
    return (
        f"A {what} for lrkv-plan: give this file as {argument}.{fill}",
        "Lines that start with # may be left as they are; a key in one is optional.",
        "Sizes and rates are written with their unit (80 GiB, 80 GB, 3.35 TB/s, 989 TFLOP/s).",
    )


def blocks_of(text: str) -> dict[str, str]:
    """The values of a YAML file's top-level keys, as written.

    Examples
    --------
    >>> blocks_of("name: a\\nlayers:\\n  - {count: 2}\\n")
    {'name': 'a', 'layers': '\\n  - {count: 2}'}
    """
    found = re.split(r"^([a-z0-9_]+):", text, flags=re.MULTILINE)[1:]
    return {
        key: value.rstrip() if value.startswith("\n") else value.strip()
        for key, value in zip(found[::2], found[1::2], strict=True)
    }
