"""Options that commands about time share."""

from typing import Annotated

import typer

RequiredGpu = Annotated[
    str, typer.Option("--gpu", metavar="GPU", help="A shipped hardware profile or a YAML file.")
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context-tokens",
        metavar="T",
        help="Tokens cached per sequence. Default: 8k, or the model's maximum.",
    ),
]
ChosenTpOption = Annotated[
    str | None,
    typer.Option(
        "--tp-size",
        metavar="P",
        help="GPUs that share the model. Default: of --n-gpus the size that serves most, else the "
        "smallest that fits.",
    ),
]
BatchOption = Annotated[
    str, typer.Option("--batch-size", metavar="N", help="Sequences decoded together.")
]
QueryOption = Annotated[
    str, typer.Option("--query-tokens", metavar="Q", help="Tokens decoded per sequence.")
]
TpotOption = Annotated[
    str | None,
    typer.Option("--tpot-ms", metavar="MS", help="Most ms an output token may take."),
]
SpeculativeOption = Annotated[
    str, typer.Option("--speculative-tokens", metavar="Q", help="Tokens verified per step.")
]
AcceptedOption = Annotated[
    str, typer.Option("--accepted-tokens", metavar="N", help="Of those, accepted on average.")
]
GpuHourOption = Annotated[
    str | None,
    typer.Option("--gpu-hour-usd", metavar="USD", help="Price of one GPU for an hour."),
]
