"""What a TAB is answered, in the words of each shell, and that it loads no library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.attention.registry import known_families
from lrkv_plan.cli import completion_scripts, names
from lrkv_plan.cli.app import COMMANDS, app
from lrkv_plan.cli.completing import candidates
from lrkv_plan.formats import STORAGE_FORMATS
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, load_model, shipped_files
from lrkv_plan.serving.engine import engine_names
from lrkv_plan.specs.design import design_label

ROOT = Path(lrkv_plan.__file__).parent.parent
H200, H20 = ("h200", "141 GiB  4.8 TB/s"), ("h20", " 96 GiB    4 TB/s")
H20_3E = ("h20-3e", "141 GiB  4.8 TB/s")


def tab(line: str) -> list[str]:
    """The names proposed at the end of a line."""
    *words, incomplete = line.split(" ")
    return [name for name, _ in candidates(words, incomplete)]


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("pl", ["plan", "plot"]),
        ("", list(COMMANDS)),
        ("nothing x", []),
        ("plan llama-3.1-8b x", []),
        ("--debug pl", ["plan", "plot"]),
        ("plan llama-3.1-", ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]),
        ("plan --gpu h200 llama-2", ["llama-2-7b"]),
        ("plan ./mine", []),
        ("plan x --gpu h20", ["h20", "h20-3e", "h200"]),
        ("plan x --gpu h100-sxm,h20", ["h100-sxm,h20", "h100-sxm,h20-3e", "h100-sxm,h200"]),
        ("plan x --gpu h20,h20", ["h20,h20-3e", "h20,h200"]),
        ("capacity x --gpu 8xh20", ["8xh20", "8xh20-3e", "8xh200"]),
        ("plan x --gpu=h20", ["--gpu=h20", "--gpu=h20-3e", "--gpu=h200"]),
        ("plan x --attention ", ["mha", "gqa:", "mqa", "mla:", "lrkv:", "shared_row:"]),
        ("plan x --attention gqa:", []),
        ("plan x --engine vllm_", ["vllm_ascend", "vllm_v0"]),
        ("cache x --kv-dtype bf16,fp8_p", ["bf16,fp8_per_token_head"]),
        ("plan x --weight-dtype nv", ["nvfp4"]),
        ("plan x -f m", ["markdown"]),
        ("crossover x --over r", ["rank"]),
        ("plan x --kv-", ["--kv-dtype", "--kv-memory"]),
        ("plan x --kv-dtype bf16 --kv-", ["--kv-memory"]),
        ("cache x --attention mha --att", ["--attention"]),
        ("plan x --help", ["--help-all", "--help"]),
        ("plan x -- --kv-", []),
        ("plot st", ["step-stack"]),
        ("plot step-stack llama-2", ["llama-2-7b"]),
        ("models sh", ["show"]),
        ("models --spec-dir . sh", ["show"]),
        ("models show qwen2", ["qwen2.5-72b", "qwen2.5-7b"]),
        ("hardware show mi", ["mi300x", "mi325x", "mi355x"]),
        ("calibrate run --thr", ["--threads"]),
        ("capacity x --lengths ", []),
        ("plan x --context-tokens ", []),
    ],
)
def test_the_word_at_the_cursor_is_completed(line: str, proposed: list[str]) -> None:
    assert sorted(tab(line)) == sorted(proposed)


def test_every_command_and_its_options_are_proposed() -> None:
    for name in COMMANDS:
        assert {"--help", "--help-all"} <= set(tab(f"{name} --")), name


def test_names_are_those_that_are_loaded() -> None:
    """Read from files without loading them, as they are read when they are loaded."""
    assert names.model_names() == [path.stem for path in shipped_files(MODEL_FOLDER)]
    assert names.gpu_names() == [path.stem for path in shipped_files(HARDWARE_FOLDER)]
    assert {name for name, _ in names.engines()} == set(engine_names())
    assert {name.rstrip(":") for name, _ in names.designs()} == set(known_families())
    assert [name for name, _ in names.kv_formats()] == list(STORAGE_FORMATS)


@pytest.mark.parametrize(("name", "told"), names.models())
def test_the_help_of_a_model_is_its_design_and_layers(name: str, told: str) -> None:
    model = load_model(name)
    design = design_label(model).split(",")[0]
    if " + " in design:  # 25x gqa:8 + 5x gqa:2
        design = " + ".join(part.partition("x ")[2] for part in design.split(" + "))
    assert told.split("  ")[0].split() == design.split()
    assert told.endswith(f" {model.n_layers} layers")


def test_the_help_of_a_gpu_is_its_memory_and_bandwidth() -> None:
    assert names.gpus("h20") == [H20, H20_3E, H200]


def test_packages_add_names_by_their_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "toy-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\nx = y:z\n[lrkv_plan.families]\ngta = gta:FAMILIES\n"
        "[lrkv_plan.engines]\ntoy = toy_engine:ENGINE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names.designs("g") == [("gqa:", ""), ("gta", "")]
    assert names.engines("to") == [("toy", "")]


def program(folder: Path) -> Path:
    """The installed program."""
    path = folder / "lrkv-plan"
    path.write_text(f"#!{sys.executable}\nfrom lrkv_plan.__main__ import main\nmain()\n")
    path.chmod(0o755)
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def bash(line: str, words: list[str], folder: Path, kind: int = 9) -> list[str]:
    """COMPREPLY of a real bash; ``words`` are the line as bash parts it."""
    script = completion_scripts.script_of("bash")
    quoted = " ".join(f"'{word}'" for word in words)
    asked = (
        f"{script}\nCOMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_TYPE={kind}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        f"_lrkv_plan '{program(folder)}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, env=environment(),
        check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "words", "reply"),
    [
        ("lrkv-plan pl", ["lrkv-plan", "pl"], ["plan", "plot"]),
        ("lrkv-plan plan x --gpu h20", ["lrkv-plan", "plan", "x", "--gpu", "h20"], ["h20", "h20-3e", "h200"]),
        # bash parts words at = and :, and replaces the last part alone.
        ("lrkv-plan plan x --gpu=h20", ["lrkv-plan", "plan", "x", "--gpu", "=", "h20"],
         ["h20", "h20-3e", "h200"]),
        ("lrkv-plan cache x --attention gq", ["lrkv-plan", "cache", "x", "--attention", "gq"],
         ["gqa:"]),
        ("lrkv-plan plan x --gpu \"h20", ["lrkv-plan", "plan", "x", "--gpu", "\"h20"],
         ["h20", "h20-3e", "h200"]),
    ],
)  # fmt: skip
def test_bash_completes(tmp_path: Path, line: str, words: list[str], reply: list[str]) -> None:
    assert bash(line, words, tmp_path) == reply


def test_bash_lists_names_with_a_word_on_each(tmp_path: Path) -> None:
    words = ["lrkv-plan", "plan", "x", "--gpu", "h20"]
    assert bash("lrkv-plan plan x --gpu h20", words, tmp_path, kind=63) == [
        "h20      96 GiB    4 TB/s",
        "h20-3e  141 GiB  4.8 TB/s",
        "h200    141 GiB  4.8 TB/s",
    ]


@pytest.mark.parametrize(
    ("shell", "arguments", "told"),
    [
        ("zsh", ["plan", "x", "--gpu", "h20"],
         ["h20: 96 GiB    4 TB/s", "h20-3e:141 GiB  4.8 TB/s", "h200:141 GiB  4.8 TB/s"]),
        ("zsh", ["cache", "x", "--attention", "m"], ["mha", "mqa", r"mla\:"]),
        ("fish", ["plan", "x", "--gpu", "h20"],
         ["h20\t 96 GiB    4 TB/s", "h20-3e\t141 GiB  4.8 TB/s", "h200\t141 GiB  4.8 TB/s"]),
        ("fish", ["plan", "x", "--kv-m"],
         ["--kv-memory\tCache memory per GPU; no budget then"]),
        ("fish", ["plan", ""], [f"{name}\t{word}" for name, word in names.models()]),
        ("zsh", ["nothing", "x"], []),
    ],
)  # fmt: skip
def test_zsh_and_fish_are_told_names_and_words(
    tmp_path: Path, shell: str, arguments: list[str], told: list[str]
) -> None:
    done = subprocess.run(
        [program(tmp_path), *arguments], capture_output=True, text=True, check=True,
        env=environment(_LRKV_PLAN_COMPLETE=shell),
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (told, "")


def test_a_tab_loads_no_library() -> None:
    script = (
        "import sys, lrkv_plan.__main__ as program\n"
        "program.main()\n"
        "print(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    unwanted = {"pydantic", "yaml", "numpy", "rich", "torch", "matplotlib", "pandas", "jinja2"}
    for line in ("plan llama", "plan x --attention m", "plot rank-sweep ll", "report x --gpu h"):
        done = subprocess.run(
            [sys.executable, "-c", script, *line.split()], capture_output=True, text=True,
            check=True, env=environment(_LRKV_PLAN_COMPLETE="fish"),
        )  # fmt: skip
        assert done.stdout, line
        assert not unwanted & set(done.stderr.split()), line


def run(*arguments: str, **settings: Any) -> Any:
    return CliRunner().invoke(app, list(arguments), **settings)


@pytest.mark.parametrize("shell", completion_scripts.SCRIPTS)
def test_installing_twice_leaves_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    start = tmp_path / f".{shell}rc"
    start.write_text("mine")
    first = run("--install-completion")
    assert (first.exit_code, first.stderr.count("wrote ")) == (0, 1 if shell == "fish" else 2)
    assert run("--install-completion", shell).exit_code == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != start]
    assert [path.read_text() for path in written] == [run("--show-completion", shell).stdout]
    expected = ["mine"]
    if shell != "fish":
        expected.append(f"[ -f '{written[0]}' ] && . '{written[0]}'  # lrkv-plan completion")
    assert start.read_text().splitlines() == expected


@pytest.mark.parametrize(
    ("arguments", "variable", "message"),
    [
        (["--show-completion"], "/bin/tcsh", "which shell is unknown (SHELL is 'tcsh')"),
        (["--show-completion"], "", "which shell is unknown"),
        (["--install-completion", "fsh"], "", "shell 'fsh'; did you mean 'fish'?"),
    ],
)
def test_an_unknown_shell_is_told(arguments: list[str], variable: str, message: str) -> None:
    result = run(*arguments, env={"SHELL": variable})
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
