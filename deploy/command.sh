#!/bin/sh
# Link the command of an environment of this checkout into a folder on PATH, or remove the link:
#
#   deploy/command.sh link .venv-cpu     deploy/command.sh unlink
#
# BIN names the folder. The default is ~/.local/bin if it is on PATH, or else /usr/local/bin if it is on PATH and
# writable. If neither is, it is ~/.local/bin, and the script prints the line that puts it on PATH. The script only
# replaces or removes links into this checkout.
set -eu
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
own=${HOME:-}/.local/bin
system=/usr/local/bin

say() { echo "cohort: $*"; }

on_path() {
    case ":${PATH:-}:" in *":$1:"* | *":$1/:"*) ;; *) return 1 ;; esac
}

is_ours() {
    case $(readlink "$1" 2>/dev/null) in "$checkout"/.venv*/bin/cohort) ;; *) return 1 ;; esac
}

link() {
    target=$checkout/$1/bin/cohort
    folder=${BIN:-}
    if [ -z "$folder" ]; then
        folder=$own
        if ! on_path "$own" && on_path "$system" && [ -w "$system" ]; then folder=$system; fi
    fi
    if [ -z "${BIN:-}${HOME:-}" ] && [ "$folder" = "$own" ]; then
        say "HOME is not set; name a folder on PATH: make install BIN=FOLDER" >&2
        exit 1
    fi
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    command=$folder/cohort
    if { [ -e "$command" ] || [ -L "$command" ]; } && ! is_ours "$command"; then
        say "$command exists and is not a link into this checkout; nothing was changed." \
            "Remove it, or name another folder: make install BIN=FOLDER" >&2
        exit 1
    fi
    ln -sfn "$target" "$command"
    say "linked $command to $1/bin/cohort; 'make uninstall${BIN:+ BIN=$BIN}' removes the link"
    if ! on_path "$folder"; then
        advise "$folder"
    elif found=$(command -v cohort) && [ "$found" != "$command" ] && ! is_ours "$found"; then
        say "but 'cohort' runs $found, which comes first on PATH" >&2
    fi
}

# Print the line that puts a folder on PATH, for the user's shell.
advise() {
    shell=${SHELL:-}
    case ${shell##*/} in
        fish) line="fish_add_path '$1'" ;;
        zsh) line="echo 'export PATH=\"$1:\$PATH\"' >>~/.zshrc && . ~/.zshrc" ;;
        bash) line="echo 'export PATH=\"$1:\$PATH\"' >>~/.bashrc && . ~/.bashrc" ;;
        *) line="export PATH=\"$1:\$PATH\"" ;;
    esac
    say "$1 is not on PATH; run this line to add it:"
    echo "  $line"
}

unlink() {
    gone=
    for folder in ${BIN:+"$BIN"} "$own" "$system"; do
        if is_ours "$folder/cohort"; then
            rm "$folder/cohort"
            gone=yes
            say "removed $folder/cohort; the environments stay: rm -r .venv .venv-cuda .venv-cpu .venv-openvino"
        fi
    done
    if [ -z "$gone" ]; then say "there is no link of this checkout's"; fi
}

"$@"
