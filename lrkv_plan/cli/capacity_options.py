"""Options that ``capacity`` and ``rank --fit-sequences`` share."""

from typing import Annotated

import typer

GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="A shipped hardware profile or a YAML file."),
]
NGpusOption = Annotated[
    str | None, typer.Option("--n-gpus", metavar="N", help="GPUs in all; replicas fill them.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME[@VERSION]",
        help="ideal, paged, vllm, vllm_v0, vllm_ascend, sglang, tensorrt_llm, llama_cpp or "
        "ik_llama_cpp; with a version vllm@0.11.0.",
    ),
]
WeightDtypeOption = Annotated[
    str | None, typer.Option("--weight-dtype", metavar="FORMAT", help="Format of the weights.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", metavar="SIZE", help="Weights per GPU as known: '14.99 GiB'."),
]
UtilisationOption = Annotated[
    str | None,
    typer.Option(
        "--utilisation", metavar="SHARE", help="The engine's memory fraction, by its meaning."
    ),
]
KvMemoryOption = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", help="Cache memory per GPU; no budget then."),
]
