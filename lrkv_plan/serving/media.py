"""What vLLM's start-up run of a vision encoder takes: the most that one step may bring in.

Only the kind of item with the most tokens is profiled, as many of it as fit the encoder's budget
(vllm/multimodal/encoder_budget.py, 0.22). Its memory is by far the largest term of a small vision
model: three quarters of a 40 GB card for a 3B model's longest video.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.serving.engine import ByVersion
from lrkv_plan.specs.deployment import EngineName
from lrkv_plan.specs.model import Media

# Bytes that an encoder of 1,280 wide takes for a patch in flight: 22.9 GiB for 458,752 patches
# (Qwen2.5-VL-3B, vLLM 0.10.2, defaults) and 3.17 GiB for 65,536 (images only). Wider ones in
# proportion, which was not seen.
BYTES_OF_PATCH, _FITTED_DIM = 53_000, 1280
LOW, HIGH = 0.9, 1.1
_ELSEWHERE = (0.6, 1.5)  # at another width
# Frames of the longest video: whatever the prompt holds, up to so many. The releases that lowered
# it are not known exactly.
_MOST_FRAMES = ByVersion(600, {(0, 11): 32, (0, 13): 14})
KINDS = ("image", "video", "audio")


@dataclass(frozen=True, kw_only=True)
class ProfiledItems:
    """What is profiled, and its bytes with both ends. [bytes]"""

    kind: str
    count: int
    tokens: int
    n_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def told(self) -> str:
        """What is profiled, as a term's provenance says it."""
        return f"{self.count} {self.kind} of {self.tokens:,} tokens"


def limits_of(text: str | None) -> dict[str, int]:
    """Items a prompt: ``image=2,video=0`` or vLLM's ``{"image": 2, "video": 0}``.

    Raises
    ------
    UsageError
        If it is neither, or names another kind.

    Examples
    --------
    >>> limits_of("image=2,video=0")
    {'image': 2, 'video': 0}
    """
    if text is None:
        return {}
    found = _json_limits(text) if text.lstrip().startswith("{") else _plain_limits(text)
    if found is None or not set(found) <= set(KINDS):
        raise UsageError(
            f"--limit-mm-per-prompt {shown(text)}: write image=1,video=0 (or JSON) for "
            f"{', '.join(KINDS)}"
        )
    return found


def _plain_limits(text: str) -> dict[str, int] | None:
    parts = [re.fullmatch(r"\s*([a-z]+)\s*=\s*(\d{1,6})\s*", part) for part in text.split(",")]
    return {part[1]: int(part[2]) for part in parts if part} if all(parts) else None


def _json_limits(text: str) -> dict[str, int] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    counts = found.values()
    are_counts = all(type(n) is int and 0 <= n < 10**6 for n in counts)
    return found if are_counts else None


def profiled_items(
    media: Media, engine: EngineName, *, context_tokens: int, batched_tokens: int,
    max_sequences: int, limits: dict[str, int],
) -> ProfiledItems | None:  # fmt: skip
    """The items of one profiling run; None where every kind is limited to none.

    Notes
    -----
    Tokens of an image: the largest that the processor makes. Of a video: pairs of frames as large
    as images, as many as stay below the context. Items = max(1, min(max(batched, tokens) // tokens,
    sequences x limit)).

    Examples
    --------
    >>> from lrkv_plan.serving.engine import engine_named
    >>> qwen = Media(image_tokens=16_384, patches_per_token=4, video_pair_tokens=16_384,
    ...              encoder_dim=1280)
    >>> found = profiled_items(qwen, engine_named("vllm@0.10.2"), context_tokens=128_000,
    ...                        batched_tokens=2048, max_sequences=256, limits={})
    >>> found.told  # printed by vLLM
    '1 video of 114,688 tokens'
    """
    sizes = {"image": media.image_tokens}
    if media.video_pair_tokens is not None:
        pairs = min(_MOST_FRAMES.of(engine) // 2, (context_tokens - 1) // media.video_pair_tokens)
        sizes["video"] = max(1, pairs) * media.video_pair_tokens
    allowed = {kind: size for kind, size in sizes.items() if limits.get(kind, 1)}
    if not allowed:
        return None
    kind = max(allowed, key=lambda one: allowed[one])
    tokens = allowed[kind]
    budget = max(batched_tokens, *allowed.values())
    count = max(1, min(budget // tokens, max_sequences * limits.get(kind, 1)))
    patches = count * tokens * media.patches_per_token
    n_bytes = patches * BYTES_OF_PATCH * media.encoder_dim // _FITTED_DIM
    low, high = (LOW, HIGH) if media.encoder_dim == _FITTED_DIM else _ELSEWHERE
    return ProfiledItems(
        kind=kind, count=count, tokens=tokens, n_bytes=n_bytes, low_bytes=int(n_bytes * low),
        high_bytes=int(n_bytes * high),
    )  # fmt: skip
