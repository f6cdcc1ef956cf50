"""Logs as engines write them, of the pools in tests/golden/serving_pools.yaml.

The lines follow the format strings in the engines' public code (vllm/v1/worker/gpu_worker.py,
vllm/worker/worker.py, sglang/srt/mem_cache/memory_pool.py, TensorRT-LLM's kvCacheManager.cpp,
llama.cpp's src/llama-kv-cache.cpp); the values are those that the cases' sources printed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

MIB = 2**20


def log_of(case: dict[str, Any]) -> str:
    """The start of a server's log that prints what the case does."""
    engine, _, version = case["engine"].partition("@")
    write = {
        "vllm": _vllm, "vllm_v0": _vllm_v0, "vllm-ascend": _ascend, "sglang": _sglang,
        "tensorrt-llm": _tensorrt_llm, "llama.cpp": _llama_cpp, "ik_llama.cpp": _llama_cpp,
    }[engine]  # fmt: skip
    if engine == "vllm" and tuple(map(int, version.split("."))) < (0, 8):
        write = _vllm_v0
    return "".join(f"{line}\n" for line in write(case, version))


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _vllm_config(case: dict[str, Any]) -> str:
    told = case.get("settings", {})
    context = told.get("context", 4096)
    kv_dtype = {"fp32": "auto"}.get(told.get("kv_dtype", "bf16"), told.get("kv_dtype", "auto"))
    dtype = "float32" if told.get("kv_dtype") == "fp32" else "bfloat16"
    draft = told.get("draft_layers", 0)
    speculative = "None" if not draft else (
        f"SpeculativeConfig(method='eagle', model='draft', num_spec_tokens="
        f"{told.get('draft_tokens', 1)})"
    )  # fmt: skip
    return (
        f"model='{case['stated']}', speculative_config={speculative}, "
        f"tokenizer='{case['stated']}', skip_tokenizer_init=False, revision=None, "
        f"dtype=torch.{dtype}, max_seq_len={context}, download_dir=None, load_format=auto, "
        f"tensor_parallel_size={told.get('tp', 1)}, pipeline_parallel_size={told.get('pp', 1)}, "
        f"data_parallel_size=1, decode_context_parallel_size={told.get('dcp', 1)}, "
        f"quantization=None, enforce_eager=False, kv_cache_dtype={kv_dtype}, device_config=cuda, "
        f"enable_prefix_caching={told.get('prefix_cache', False)}, chunked_prefill_enabled=True"
    )


def _vllm(case: dict[str, Any], version: str) -> list[str]:
    told, prints = case.get("settings", {}), case["prints"]
    args = {"model_tag": case["stated"]}
    if "block" in told:
        args["block_size"] = told["block"]
    core = "(EngineCore_DP0 pid=140) INFO 10-12 07:12:02"
    lines = [
        f"(APIServer pid=7) INFO 10-12 07:11:21 [api_server.py:1839] vLLM API server version "
        f"{version}",
        f"(APIServer pid=7) INFO 10-12 07:11:21 [utils.py:233] non-default args: {args}",
        f"{core} [core.py:77] Initializing a V1 LLM engine (v{version}) with config: "
        f"{_vllm_config(case)}",
    ]
    if "max_batched_tokens" in told:
        lines.append(
            f"{core} [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens="
            f"{told['max_batched_tokens']}."
        )
    for rank, text in enumerate(_texts(prints.get("available_gib", []))):
        lines.append(
            f"(Worker_PP{rank} pid={200 + rank}) INFO 10-12 07:12:12 [gpu_worker.py:298] "
            f"Available KV cache memory: {text} GiB"
        )
    if "blocks" in prints:
        lines.append(f"{core} [executor_base.py:112] # cuda blocks: {prints['blocks']}, "
                     "# CPU blocks: 0")  # fmt: skip
    lines.append(f"{core} [kv_cache_utils.py:1087] GPU KV cache size: {prints['tokens']:,} tokens")
    if "concurrency" in prints:
        lines.append(
            f"{core} [kv_cache_utils.py:1091] Maximum concurrency for {told['context']:,} tokens "
            f"per request: {prints['concurrency']}x"
        )
    return lines


def _ascend(case: dict[str, Any], version: str) -> list[str]:
    lines = _vllm(case, version)
    lines.insert(0, "INFO 10-12 07:11:00 [__init__.py:207] Platform plugin ascend is activated")
    n_bytes = case["prints"].get("available_bytes")
    if n_bytes is not None:
        lines.append(f"INFO 10-12 07:12:12 [worker_v1.py:256] Available memory: {n_bytes}, total "
                     "memory: 31675383808")  # fmt: skip
    return lines


def _vllm_v0(case: dict[str, Any], version: str) -> list[str]:
    told, prints = case.get("settings", {}), case["prints"]
    start = "INFO 03-25 21:32:48"
    kind = "an" if version < "0.8" else "a V0"
    lines = [
        f"{start} llm_engine.py:237] Initializing {kind} LLM engine (v{version}) with config: "
        f"{_vllm_config(case)}"
    ]
    if "block" in told:
        lines.insert(0, f"{start} api_server.py:839] args: Namespace(model='{case['stated']}', "
                     f"block_size={told['block']}, swap_space=4)")  # fmt: skip
    if "available_gib" in prints:
        lines.append(
            f"{start} worker.py:266] model weights take 14.99GiB; non_torch_memory takes 0.05GiB; "
            "PyTorch activation peak memory takes 0.22GiB; the rest of the memory reserved for KV "
            f"Cache is {prints['available_gib']}GiB."
        )
    blocks = prints.get("blocks", prints["tokens"] // told.get("block", 16))
    lines.append(f"{start} executor_base.py:108] # GPU blocks: {blocks}, # CPU blocks: 2048")
    if "concurrency" in prints:
        lines.append(
            f"{start} executor_base.py:113] Maximum concurrency for {told['context']} tokens per "
            f"request: {prints['concurrency']}x"
        )
    return lines


def _sglang(case: dict[str, Any], version: str) -> list[str]:
    told, prints = case.get("settings", {}), case["prints"]
    stamp = "[2026-02-16 14:02:09 TP0]"
    if "latent_gib" in prints:
        size = f"KV size: {prints['latent_gib']} GB"
    else:
        key, value = prints["key_and_value_gib"]
        size = f"K size: {key} GB, V size: {value} GB"
    return [
        f"[2026-02-16 14:02:09] server_args=ServerArgs(model_path='{case['stated']}', "
        f"context_length=None, dtype='auto', quantization=None, "
        f"kv_cache_dtype='{told.get('kv_dtype', 'auto')}', tp_size={told.get('tp', 1)}, pp_size=1, "
        f"dp_size=1, ep_size=1, page_size={told.get('block', 1)})",
        f"{stamp} Load weight end. type=SomeForCausalLM, dtype=torch.bfloat16, avail mem=21.80 "
        "GB, mem usage=15.00 GB.",
        f"{stamp} KV Cache is allocated. #tokens: {prints['tokens']}, {size}",
        f"{stamp} max_total_num_tokens={prints['tokens']}, chunked_prefill_size=8192, "
        f"max_prefill_tokens=16384, max_running_requests=2048, "
        f"context_len={told.get('context', 4096)}",
    ]


def _tensorrt_llm(case: dict[str, Any], version: str) -> list[str]:
    told, prints = case.get("settings", {}), case["prints"]
    block = told.get("block", 32 if version.startswith("1") else 64)
    return [
        f"[TensorRT-LLM] TensorRT-LLM version: {version}",
        f"[TensorRT-LLM][INFO] Number of tokens per block: {block}.",
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {prints['available_gib']} GiB for max "
        f"tokens in paged KV cache ({prints['tokens']}).",
        f"[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len={told.get('context', 4096)}, "
        "max_num_requests=2048, max_num_tokens=8192",
    ]


def _llama_cpp(case: dict[str, Any], version: str) -> list[str]:
    told, prints = case["settings"], case["prints"]
    n_sequences, kv_dtype = told.get("sequences", 1), told["kv_dtype"].replace("fp16", "f16")
    lines = [
        f"llama_model_loader: loaded meta data with 33 key-value pairs and 399 tensors from "
        f"/models/{case['stated'].rpartition('/')[2]}.gguf (version GGUF V3 (latest))",
        "llama_context: constructing llama_context",
        f"llama_context: n_seq_max     = {n_sequences}",
        f"llama_context: n_ctx         = {told['context']}",
        f"llama_context: n_ctx_per_seq = {told['context'] // n_sequences}",
        "llama_context: n_ubatch      = 512",
    ]
    sizes = {name: Fraction(text) for name, text in prints["mib"].items()}
    if case["engine"].startswith("ik_"):
        size = f"{float(sizes['all']):.2f} MiB"
        lines.append(
            f"llama_new_context_with_model: KV self size  = {size}, c^KV ({kv_dtype}): {size}, "
            "kv^T: not used"
        )
        return lines
    kinds = [name for name in ("full", "sliding") if name in sizes] or ["all"]
    if kinds == ["all"] and "all" not in sizes:
        sizes["all"] = sum(sizes.values(), Fraction(0))
    for kind in kinds:
        cells = prints.get("cells", {}).get(kind, told["context"])
        key, value = (
            (sizes["latent"], sizes["rope_key"]) if "latent" in sizes else (sizes[kind] / 2,) * 2
        )
        lines.append(
            f"llama_kv_cache: size = {float(sizes[kind]):.2f} MiB ({cells:>6} cells,  32 layers,  "
            f"{n_sequences}/1 seqs), K ({kv_dtype}): {float(key):.2f} MiB, V ({kv_dtype}): "
            f"{float(value):.2f} MiB"
        )
    if "state" in sizes:
        lines.append(
            f"llama_memory_recurrent: size = {float(sizes['state']):.2f} MiB (     1 cells,  48 "
            "layers,  1 seqs), R (f32):    7.00 MiB, S (f32):   80.00 MiB"
        )
    return lines


def log_of_budget(row: dict[str, Any], version: str, visible_gib: float) -> str:
    """The start of vLLM's log for a row of tests/golden/vllm_memory_budgets.yaml, all terms told."""
    dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[row["runs_in"]]
    kv_dtype = "fp8" if row["kv"] == "fp8" else "auto"
    start = "(EngineCore_DP0 pid=9) INFO 10-12 07:12:02 [{}] "
    lines = [
        start.format("core.py:77")
        + f"Initializing a V1 LLM engine (v{version}) with config: model='{row['hub']}', "
        f"dtype=torch.{dtype}, max_seq_len={row['max_model_len']}, "
        f"tensor_parallel_size={row['tp']}, pipeline_parallel_size={row['pp']}, "
        f"kv_cache_dtype={kv_dtype}",
        start.format("gpu_worker.py:420")
        + f"Free memory on device (78.68/{visible_gib} GiB) on startup. Desired GPU memory "
        f"utilization is ({row['utilisation']}, 75.23 GiB). Actual usage is {row['weights_gib']} "
        f"GiB for weight, {row['activation_gib']} GiB for peak activation, {row['non_torch_gib']} "
        f"GiB for non-torch memory, and {row['graphs_gib']} GiB for CUDAGraph memory.",
        start.format("gpu_model_runner.py:2653")
        + f"Model loading took {row['weights_gib']} GiB memory and 3.21 seconds",
        start.format("gpu_worker.py:298") + f"Available KV cache memory: {row['kv_gib']} GiB",
        start.format("kv_cache_utils.py:1087") + f"GPU KV cache size: {row['kv_tokens']:,} tokens",
    ]
    return "".join(f"{line}\n" for line in lines)
