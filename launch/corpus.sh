#!/usr/bin/env bash
# Make, clean and tokenise corpora with packages that plm_jax cannot have, in separate environments (made on first use).
#
#   bash launch/corpus.sh tfds NAME [flags] [-- flags of the Beam runner]
#   bash launch/corpus.sh tfds wiki40b/en
#   bash launch/corpus.sh tfds c4/en --data_dir=gs://BUCKET/tfds --runner=DataflowRunner \
#       -- --project=PROJECT --region=us-west4 --temp_location=gs://BUCKET/tmp
#   bash launch/corpus.sh tfds my_set --module=my_set.py
#   bash launch/corpus.sh prepare [flags] -- --config=FILE [flags of plm-jax prepare]
#   bash launch/corpus.sh clean SOURCE OUT [flags]
#
# tfds (Apache Beam, .venv-beam): NAME is that of TensorFlow Datasets, with /config and :version if needed. The set is
# written as array_record, which data.path=tfds:NAME reads without Beam and TensorFlow. A set that is there is left
# unchanged, and a killed call is repeated. Sets of TensorFlow Datasets without Beam are made too.
#
# prepare (datatrove, .venv-cleaning): several workers tokenise a corpus. Parts are tasks of an engine, and the last task
# joins them. The store has the bytes that one process makes. A killed task is made again, and a killed call is repeated.
#
# clean (datatrove, .venv-cleaning): SOURCE is a folder of .jsonl or .parquet files, and OUT gets .jsonl files.
#
# `bash launch/corpus.sh prepare --help` and `clean --help` list their other flags.
#
# Flags:
#   --data_dir=FOLDER  where to write (default $TFDS_DATA_DIR, or ~/tensorflow_datasets, which tfds: reads)
#   --runner=RUNNER    DirectRunner (default: this machine, all cores), DataflowRunner, SparkRunner, FlinkRunner
#   --workers=N        processes of DirectRunner (default: one for each core)
#   --module=MODULE    a module, or a file MODULE.py, that defines a builder of yours
#   --venv=FOLDER      the environment (default .venv-beam or .venv-cleaning in the checkout)
#   --any_size         begin even if the disk is too small for the published sizes
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
list=beam venv=''
runner=DirectRunner module=''
given=()

say() { printf '[corpus] %s\n' "$*" >&2; }

fail() {
  say "$1"
  exit 2
}

# Creates the environment, or installs what changed in its list or is missing: install [PACKAGE ...]
install() {
  local python=''
  venv=${venv:-$root/.venv-$list}
  if [[ ! -x $venv/bin/python || -e $venv/.unfinished ]]; then
    for python in ${PYTHON:+"$PYTHON"} "$root/.venv/bin/python" python3.12 python3.11 python3.13 python3; do
      ! "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || break
    done
    say "making $venv"
    rm -rf -- "$venv"
    mkdir -p -- "$venv"
    touch -- "$venv/.unfinished"
    "$python" -m venv "$venv" || fail 'no Python 3.11 or newer with its venv module: PYTHON=/path/to/python3.12'
    rm -- "$venv/.unfinished"
  fi
  if [[ $# -gt 0 ]]; then
    say "installing $* into $venv"
    "$venv/bin/python" -m pip install --quiet "$@" || fail "pip could not install $*: see above"
  elif ! cmp -s -- "$root/requirements/$list.txt" "$venv/.installed"; then
    say "installing requirements/$list.txt into $venv"
    "$venv/bin/python" -m pip install --quiet -r "$root/requirements/$list.txt" || fail "pip could not install requirements/$list.txt: see above"
    cp -- "$root/requirements/$list.txt" "$venv/.installed"
  fi
}

# Runs `prepare` or `clean` with datatrove: with_datatrove COMMAND [word ...]
with_datatrove() {
  local python='' words=() script=$root/launch/corpus_datatrove.py
  for python in ${PYTHON:+"$PYTHON"} "$root/.venv/bin/python" python3; do
    ! command -v "$python" >/dev/null || break
  done
  while [[ $# -gt 0 && $1 != -- ]]; do
    case $1 in --venv=?*) venv=${1#*=} ;; *) words+=("$1") ;; esac
    shift
  done
  export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
  "$python" "$script" --check "${words[@]}" "$@" || exit $?  # before packages are installed
  [[ " ${words[*]} " != *' --help '* && " ${words[*]} " != *' -h '* ]] || exit 0
  list=cleaning
  install
  PYTHON=$python exec "$venv/bin/python" "$script" "${words[@]}" "$@"
}

case ${1:-} in prepare | clean) with_datatrove "$@" ;; esac
for word in "$@"; do
  [[ $word != -- ]] || break
  if [[ $word == --help || $word == -h ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
  fi
done
[[ ${1:-} == tfds ]] || fail 'name what to make: bash launch/corpus.sh tfds NAME (--help explains it)'
[[ ${2:-} =~ ^[A-Za-z]\w*[A-Za-z0-9_/.:+-]*$ ]] || fail 'name a set of TensorFlow Datasets: bash launch/corpus.sh tfds wiki40b/en'
name=$2
shift 2
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --runner=DirectRunner | --runner=DataflowRunner | --runner=SparkRunner | --runner=FlinkRunner) runner=${1#*=} ;;
    --runner=*) fail "$1: expected DirectRunner, DataflowRunner, SparkRunner or FlinkRunner" ;;
    --venv=?*) venv=${1#*=} ;;
    --data_dir=?* | --any_size) given+=("$1") ;;
    --module=*.py)
      module=${1#*=}
      [[ -f $module ]] || fail "$1: there is no such file"
      folder="$(cd -- "$(dirname -- "$module")" && pwd -P)"  # processes of Beam find it there too
      export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
      module="$(basename -- "$module" .py)"
      ;;
    --module=?*) module=${1#*=} ;;
    --workers=*) [[ $1 =~ ^--workers=[1-9][0-9]*$ ]] && given+=("$1") || fail "$1: expected a whole number of 1 or more" ;;
    *) fail "there is no flag $1. --help lists the flags; those of the Beam runner come after --" ;;
  esac
  shift
done
[[ $# -eq 0 ]] || shift
[[ $module =~ ^([A-Za-z_][A-Za-z0-9_.]*)?$ ]] || fail "--module=$module is no name of a module"

# The package of a module that a builder imports; nothing if it is none of those that builders of TFDS use.
package_of() {
  case $1 in
    tensorflow | apache_beam.*) echo tensorflow ;;
    gcld3 | nltk | langdetect | mwparserfromhell | mwxml | pandas | scipy | lxml | pycld3 | zstandard | gcsfs) echo "$1" ;;
    bs4) echo beautifulsoup4 ;;
    apache_beam_gcp) echo 'apache-beam[gcp]' ;;
  esac
}

install
case $runner in DataflowRunner) "$venv/bin/python" -c 'import apache_beam.io.gcp.gcsio, gcsfs' 2>/dev/null || install 'apache-beam[gcp]' gcsfs ;; esac
program="import sys
sys.path.append('$root/launch')
import corpus_tfds
def own():
  import ${module:-tensorflow_datasets} as found
  return ${module:+found or }corpus_tfds.stock()
sys.exit(corpus_tfds.main(own))
"
missing="$(mktemp)"
trap 'rm -f -- "$missing"' EXIT
for _ in 1 2 3 4 5 6; do
  code=0
  : >"$missing"
  "$venv/bin/python" -c "$program" "$name" ${given[@]+"${given[@]}"} --runner="$runner" --missing="$missing" \
    -- "$@" </dev/null || code=$?
  [[ -s $missing ]] || exit "$code"
  package="$(package_of "$(cat "$missing")")"
  [[ -n $package ]] || fail "the builder needs $(cat "$missing"): $venv/bin/python -m pip install $(cat "$missing"), then the same command"
  install "$package"
done
exit "$code"
