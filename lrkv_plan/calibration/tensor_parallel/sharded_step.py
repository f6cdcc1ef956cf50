"""One worker's decode step under a placement policy, from its own queries to the layer's output.

Fetch what the policy spreads, attend, merge partial results, project, all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch

from lrkv_plan.calibration.decode.attend import merge_partial
from lrkv_plan.calibration.decode.step import DecodeStep
from lrkv_plan.calibration.decode.weights import drawing
from lrkv_plan.calibration.tensor_parallel.group import Group
from lrkv_plan.calibration.tensor_parallel.local_step import Case, local_step


class ShardedStep:
    """One worker's step under a policy, to be run again and again; counts what it receives.

    ``link_bytes`` and ``merge_bytes`` are those of the last step.
    """

    def __init__(self, group: Group, case: Case, whole: DecodeStep, policy: str) -> None:
        self.group, self.case, self.policy = group, case, policy
        self.local = local_step(case, whole, policy, index=group.index, tp_size=group.n_workers)
        sizes = {share.n_sharing for share in self.local.fetched}
        self.members = {size: group.subgroups(size) for size in sorted(sizes)}
        heads = self.local.heads
        self.query = whole.inputs.query[:, heads.start : heads.stop].contiguous()
        self.sinks = whole.inputs.weights.get("sinks")
        self.width = whole.work.n_heads * self.local.attention.run().shape[-1]
        each = self.width // group.n_workers
        mine = self.whole_projection()[group.index * each : (group.index + 1) * each]
        self.projection = mine.to(self.query.device)
        self.link_bytes = self.merge_bytes = 0
        self.all_queries: torch.Tensor | None = None

    def whole_projection(self) -> torch.Tensor:
        """The output projection (H v_head_dim, model_dim), the same on all workers; on the CPU."""
        rows = drawing(self.case.seed + 1)(self.width, self.case.model_dim, terms=self.width)
        return rows.to(self.query.dtype)

    @property
    def message_bytes(self) -> int:
        """Bytes that the step's all-reduce sums. [bytes]"""
        rows = self.case.batch_size * self.case.query_tokens
        return rows * self.case.model_dim * self.projection.element_size()

    @property
    def has_the_right_queries(self) -> bool:
        """Whether the queries that the last step gathered are those its attention was built on."""
        if self.all_queries is None:
            return True
        return bool(torch.equal(self.all_queries, self.local.inputs.query))

    def attend(self) -> torch.Tensor:
        """Outputs of this GPU's own heads, (B, H/P, q, v_head_dim)."""
        self.link_bytes = self.merge_bytes = 0
        with torch.inference_mode():
            for share in self.local.fetched:
                buffer = self.local.inputs.cache.tensors[share.name]
                self.link_bytes += self._gather(
                    buffer.view(share.n_sharing, -1),
                    self.local.kept[share.name],
                    self.members[share.n_sharing],
                )
            if self.policy != "by_token":
                return self.local.attention.run()
            self._gather_queries()
            return self._merged(*self.local.attention.partial())

    def run(self) -> torch.Tensor:
        """The layer's output, (B, q, model_dim), summed over all GPUs."""
        with torch.inference_mode():
            return self.project(self.attend())

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """This GPU's heads through its rows of the output projection, summed over all GPUs."""
        batch, _, n_query, _ = outputs.shape
        flat = outputs.transpose(1, 2).reshape(batch * n_query, -1)
        summed = flat.to(self.projection.dtype) @ self.projection
        self.group.all_reduce(summed)
        return summed.view(batch, n_query, -1)

    def _gather(self, into: torch.Tensor, mine: torch.Tensor, members: Any = None) -> int:
        """Fill ``into``; the bytes that came from other GPUs."""
        self.group.all_gather(into, mine, members)
        return (len(into) - 1) * mine.numel() * mine.element_size()

    def _from_all(self, mine: torch.Tensor) -> torch.Tensor:
        """Every GPU's ``mine``, stacked."""
        parts = mine.new_empty((self.group.n_workers, *mine.shape))
        self.merge_bytes += self._gather(parts, mine)
        return parts

    def _gather_queries(self) -> None:
        """Every GPU needs the queries of all heads. Its attention holds them, scaled, already."""
        self.all_queries = torch.cat(tuple(self._from_all(self.query)), dim=1)

    def _merged(self, outputs: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
        """This GPU's own heads over all tokens, from every GPU's part of them."""
        packed = torch.cat((outputs, log_sums[..., None]), dim=-1).contiguous()
        own = slice(self.local.heads.start, self.local.heads.stop)
        mine = [part[:, own] for part in self._from_all(packed)]
        sinks = None if self.sinks is None else self.sinks[own]
        return merge_partial([p[..., :-1] for p in mine], [p[..., -1] for p in mine], sinks)
