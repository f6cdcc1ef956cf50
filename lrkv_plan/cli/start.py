"""What a bare ``lrkv-plan`` shows: the question, five tasks, and where names come from."""

from lrkv_plan.cli.names import gpu_names, model_names

QUESTION = "How much cache, how many users, how fast, for MHA, GQA, MQA, MLA and LRKV."
TASKS = {
    "which attention, at a glance": "lrkv-plan plan llama-3.1-8b --gpu h100-sxm",
    "how large may the rank be": "lrkv-plan rank MODEL --budget 50%",
    "how many users fit": "lrkv-plan capacity MODEL --gpu 8xh100-sxm",
    "when does one get faster": "lrkv-plan crossover MODEL --gpu GPU \\\n"
    "--attention gqa:8 --attention mla:512+64",
    "what did it rest on": "lrkv-plan plan MODEL --gpu GPU --explain",
}


def screen() -> str:
    """The screen, 80 columns wide at most."""
    left = 3 + max(map(len, TASKS))
    lines = [QUESTION, ""]
    for task, command in TASKS.items():
        first, *later = command.splitlines()
        lines.append(f" {task:{left}}{first}")
        lines += [" " * (left + 5) + line for line in later]
    lines += [
        "",
        f"MODEL: one of {len(model_names())} names, or a folder with a config.json.",
        f"GPU: one of {len(gpu_names())}, or a YAML file.",
        "Names: lrkv-plan models, lrkv-plan hardware   All commands: lrkv-plan --help",
    ]
    return "\n".join(lines)
