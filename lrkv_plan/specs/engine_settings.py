"""What an engine is told besides the model and its GPUs, and ``--engine NAME[@VERSION]`` text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lrkv_plan.errors import UsageError, shown

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings by the engines' own meaning.

    ``context_tokens`` is the engine's maximum length per sequence. ``page_tokens`` None takes the
    engine's default. ``draft_layers`` are attention layers of a speculative draft that share the
    pool, ``draft_tokens`` the tokens it proposes.
    """

    context_tokens: int
    kv_dtype: str = "bf16"
    page_tokens: int | None = None
    max_batched_tokens: int = 8192
    draft_layers: int = 0
    draft_tokens: int = 0
    prefix_cache: bool = False
    encoder_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineName:
    """An engine and its version; no version means the newest rules that are known."""

    name: str
    version: Version | None = None

    def __str__(self) -> str:
        version = ".".join(map(str, self.version)) if self.version else ""
        return f"{self.name}@{version}" if version else self.name

    def at_least(self, *version: int) -> bool:
        """Whether the engine is at least that version; an unstated version is the newest."""
        return self.version is None or self.version >= version


_TEXT = re.compile(r"([A-Za-z_.0-9-]+?)(?:@v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[.a-z+-].*)?)?")


def parse_engine(text: str) -> EngineName:
    """``vllm`` or ``vllm@0.11.0``; suffixes such as rc1 are dropped.

    Raises
    ------
    UsageError
        If the text is not a name with an optional version.

    Examples
    --------
    >>> parse_engine("vllm@0.11.0")
    EngineName(name='vllm', version=(0, 11, 0))
    """
    match = _TEXT.fullmatch(text.strip()) if len(text) < 60 else None
    if match is None:
        raise UsageError(f"engine {shown(text)}: write a name and perhaps a version, vllm@0.11.0")
    name = match[1].lower().replace("-", "_").replace(".", "_")
    version = tuple(int(part) for part in match[2].split(".")) if match[2] else None
    return EngineName(name={"trtllm": "tensorrt_llm"}.get(name, name), version=version)
