#!/usr/bin/env bash
# Create or repair .venv in the repository root, and install requirements.txt and the command plm-jax into it.
#
#   bash launch/setup.sh [EXTRA ...]     also install requirements/EXTRA.txt: test, compare, scores, corpus, lm_eval, mteb, sentencepiece, chinese, hdf5, numba, released, sweep, plan, buckets, wandb, tpu
#
# It does nothing if everything is installed. PYTHON=/path/to/python selects the interpreter of a new .venv.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
venv="$root/.venv"
python="$venv/bin/python"
unfinished="$venv/.unfinished"  # exists during installation, to detect a killed one
is_usable='import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)'

say() { printf '[setup] %s\n' "$*" >&2; }

version_of() {
  "$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints the first Python of a tested version (3.11 to 3.13), else the first newer one, else instructions.
find_python() {
  local candidate version newer='' too_old='' bare=''
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    version="$(version_of "$candidate")" || continue
    if [[ $version != 3.* || ${version#3.} -lt 11 ]]; then
      too_old="$too_old $candidate is $version;"
    elif ! "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null; then
      bare="${bare:-$candidate}"
    elif [[ ${version#3.} -le 13 || -n ${PYTHON:-} ]]; then
      echo "$candidate"
      return
    else
      newer="${newer:-$candidate}"
    fi
  done
  if [[ -n $newer ]]; then
    say "The only Python found is $(version_of "$newer"), newer than the tested ones (3.11 to 3.13); trying it."
    echo "$newer"
  elif [[ -n $bare ]]; then
    version="$(version_of "$bare")"
    say "$bare is Python $version, but its venv module is not installed."
    say "Debian, Ubuntu: apt-get install python$version-venv (or python3-venv)."
    say 'Or choose another Python: PYTHON=/path/to/python3.12'
    return 2
  else
    say "No Python 3.11 or newer on PATH:${too_old:- no Python at all.}"
    say 'Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv. macOS: brew install python@3.12.'
    say 'Elsewhere: https://www.python.org/downloads. If it is not on PATH: PYTHON=/path/to/python3.12'
    return 2
  fi
}

make_venv() {
  local base
  base="$(find_python)"
  if [[ -e $venv || -L $venv ]]; then
    say "$venv $1: creating it again."
    rm -rf -- "$venv"
  fi
  say "Making $venv with Python $(version_of "$base") ($base)."
  mkdir -- "$venv"
  touch -- "$unfinished"
  "$base" -m venv "$venv"
}

# Writes .venv/bin/plm-jax and adds the checkout to the path of .venv, like `pip install --editable`, but without
# network and setuptools. An existing script is not changed.
install_command() {
  local packages script="$venv/bin/plm-jax"
  [[ ! -x $script ]] || return 0
  packages="$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$root" >"$packages/plm_jax.pth"
  printf '%s\n' '#!/bin/sh' 'exec "$(dirname -- "$(readlink -f -- "$0")")/python" -m plm_jax "$@"' >"$script.new"
  chmod +x -- "$script.new"
  mv -- "$script.new" "$script"
}

trap 'exit 130' INT
trap 'exit 143' TERM

lists=("$root/requirements.txt")
for extra in "$@"; do
  if [[ ! -f $root/requirements/$extra.txt ]]; then
    choices="$(cd -- "$root/requirements" && echo *.txt)"
    say "No extra is called '$extra'; there are: ${choices//.txt/}."
    exit 2
  fi
  case $extra in
    beam) say 'Apache Beam needs a separate environment, which bash launch/corpus.sh tfds NAME makes.' && exit 2 ;;
    cleaning) say 'datatrove needs a separate environment, which bash launch/corpus.sh prepare makes.' && exit 2 ;;
  esac
  lists+=("$root/requirements/$extra.txt")
done

# One set-up at a time; the lock is on this file, so that no lock file remains.
if command -v flock >/dev/null; then
  exec 9<"$root/launch/setup.sh"
  if ! flock -n 9; then
    say 'Another set-up of this folder is running; waiting for it.'
    flock 9
  fi
fi

if [[ -e $unfinished ]]; then
  make_venv 'is incomplete (an earlier run was interrupted)'
elif [[ ! -e $venv ]]; then
  make_venv 'is a broken link'
elif ! "$python" -I -c "$is_usable" 2>/dev/null; then
  make_venv 'holds no working Python 3.11 or newer'
fi

# Folder with copies of the installed lists, one for each minor version of Python.
stamp_folder() { echo "$venv/.installed-$(version_of "$python")"; }
stamps="$(stamp_folder)"
missing=()
for list in "${lists[@]}"; do
  cmp -s -- "$list" "$stamps/${list##*/}" || missing+=("${list#"$root"/}")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  install_command
  exit 0
fi

has_pip() { "$python" -I -m pip --version >/dev/null 2>&1; }
if ! has_pip && ! { "$python" -I -m ensurepip >/dev/null 2>&1 && has_pip; }; then
  make_venv 'has no pip, and it cannot be installed'
  stamps="$(stamp_folder)"
  missing=("${lists[@]#"$root"/}")
fi

say "Installing ${missing[*]} into $venv."
if [[ -e $unfinished ]]; then
  say 'About 0.3 GB to download and 1.2 GB on disk; one to five minutes, once.'
fi
arguments=()
for list in "${missing[@]}"; do
  arguments+=(-r "$root/$list")
done
touch -- "$unfinished"
if ! PIP_USER=0 PIP_REQUIRE_VIRTUALENV=1 "$python" -I -m pip install --no-input --disable-pip-version-check \
  --prefer-binary "${arguments[@]}" >&2; then
  rm -f -- "$unfinished"
  say 'pip could not install the packages: see its message above. Fix the cause and run the same command again.'
  exit 1
fi
mkdir -p -- "$stamps"
cp -- "${lists[@]}" "$stamps/"
install_command
rm -f -- "$unfinished"
say 'Done.'
