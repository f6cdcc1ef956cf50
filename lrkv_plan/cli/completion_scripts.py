"""The scripts that ask the program at a TAB, for bash, zsh and fish, and where they are put."""

import os
from pathlib import Path

from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.files import write_whole

_BASH = """\
_lrkv_plan() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_LRKV_PLAN_COMPLETE=bash COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_TYPE="$COMP_TYPE" COMP_WORDBREAKS="$COMP_WORDBREAKS" "$1" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _lrkv_plan lrkv-plan
"""
_ZSH = """\
#compdef lrkv-plan
_lrkv_plan() {
    local -a found begun
    found=("${(@f)$(_LRKV_PLAN_COMPLETE=zsh ${(Q)words[1]} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z "${found[*]}" ]]; then
        _files
        return
    fi
    begun=(${(M)found:#*:})
    found=(${found:#*:})
    (( $#found )) && _describe -V 'lrkv-plan' found
    (( $#begun )) && compadd -S '' -- ${begun//\\\\:/:}
}
if [[ "$funcstack[1]" == _lrkv_plan ]]; then
    _lrkv_plan "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _lrkv_plan lrkv-plan
fi
"""
_FISH = """\
function __lrkv_plan_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (_LRKV_PLAN_COMPLETE=fish $words[1] $words[2..-1] "$word" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$word"
    end
end
complete -c lrkv-plan -f -a '(__lrkv_plan_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def with_shell(args: list[str]) -> list[str]:
    """The arguments with the person's shell where ``--install-completion`` stands alone."""
    if len(args) != 1 or args[0] not in ("--show-completion", "--install-completion"):
        return args
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SCRIPTS:
        raise UsageError(
            f"{args[0]}: which shell is unknown (SHELL is {shown(shell)})",
            advice=[f"lrkv-plan {args[0]} bash   or zsh, fish"],
        )
    return [*args, shell]


def script_of(shell: str) -> str:
    """The script for that shell.

    Raises
    ------
    UsageError
        If there is none.
    """
    if shell not in SCRIPTS:
        hint = did_you_mean(shell, SCRIPTS)
        raise UsageError(
            f"shell {shown(shell)}{hint}: there is completion for {', '.join(SCRIPTS)}"
        )
    return SCRIPTS[shell]


def install(shell: str) -> list[str]:
    """Put the script where the shell finds it; what was written, to tell.

    fish finds it by its place. bash and zsh get one line in their start-up file, once.
    """
    script = script_of(shell)
    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [_written(folder / "fish" / "completions" / "lrkv-plan.fish", script)]
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    path = data / "lrkv-plan" / f"completion.{shell}"
    told = [_written(path, script)]
    start = home / ".bashrc"
    if shell == "zsh":
        start = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    line = f"[ -f '{path}' ] && . '{path}'  # lrkv-plan completion"
    before = start.read_text(encoding="utf-8") if start.exists() else ""
    if line not in before.splitlines():
        gap = "" if not before or before.endswith("\n") else "\n"
        told.append(_written(start, f"{before}{gap}{line}\n"))
    return told


def _written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, force=True)
    return f"wrote {path}"
