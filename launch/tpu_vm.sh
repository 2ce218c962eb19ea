#!/usr/bin/env bash
# Train on a Cloud TPU from your own machine with gcloud. launch/README.md has a step-by-step guide.
#
#   bash launch/tpu_vm.sh COMMAND NAME [flags] [-- arguments of plm-jax train]
#
# Commands (each may be repeated safely):
#   create     create the TPU NAME and wait until it is ready
#   prepare    build the vocabulary and token stores in --shared, on the machine of --prepare_on (plm-jax prepare)
#   install    copy this checkout to every host and install it (launch/tpu_worker.sh)
#   take       copy the vocabulary and token stores from --shared to every host
#   doctor     check that the hosts agree and the run can start (plm-jax doctor)
#   start      start the run on every host; it continues without your connection
#   up         prepare, create, install, take, doctor and start, in this order
#   tail       print the output of the first host, until Ctrl-C
#   state      print the state of the TPU and of the run
#   stop       send SIGTERM to the run: it saves and ends
#   fetch      copy the run folder to --to
#   delete     delete the TPU and the disks of its hosts
#   watch      up, then resume after preemptions, maintenance and crashes until the run is finished
#
# Flags:
#   --zone=ZONE           such as us-west4-a
#   --project=PROJECT     default: that of gcloud's config
#   --type=TYPE           accelerator type, such as v5litepod-16
#   --runtime=VERSION     software version of the hosts (default: by the type)
#   --spot                a cheaper TPU that may be preempted at any time
#   --slices=N            number of slices of that type for one run (default 1)
#   --direct              create the TPU at once or fail, instead of a queued resource
#   --create_flag=FLAG    additional flag of gcloud's create, such as --create_flag=--network=mine; may be repeated
#   --internal_ip         connect by internal IP, from a machine in the same network
#   --shared=FOLDER       what is prepared (default gs://BUCKET/plm_jax/stores of the bucket of --workdir; none: nothing
#                         is shared, and every host prepares its own)
#   --in_place            take copies no tokens: the run reads them in --shared (needs data.shuffle_window)
#   --prepare_on=WHERE    here (default if this checkout has .venv), vm (a CPU machine, created and deleted) or hosts
#   --machine=TYPE        of that CPU machine (default n2-standard-16)
#   --compile_cache=FOLDER  compiled programs (default gs://BUCKET/plm_jax/compiled; none: not stored)
#   --env=NAME=VALUE      environment variable of the run; may be repeated
#   --to=FOLDER           target folder of fetch (default runs/fetched/NAME)
#   --without_checkpoints fetch no checkpoints (for folders on gs://)
#   --tries=N             watch: total number of new TPUs and restarts (default 20)
#   --poll=SECONDS        seconds between two checks of a state (default 30)
#   --delete              watch: delete the TPU when the run is finished, and when watch gives up on a run on gs://
#   --dry_run             print the commands without running them
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
folder=plm_jax  # checkout in the home folder of a host
worker="bash $folder/launch/tpu_worker.sh"
commands=' create install prepare take doctor start up tail state stop fetch delete watch '

say() { printf '[tpu_vm] %s\n' "$*" >&2; }

fail() {
  say "$1"
  exit 2
}

# Quotes arguments as one line for a shell.
quoted() {
  local word line=''
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+-]*) word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'" ;;
    esac
    line="$line${line:+ }$word"
  done
  printf '%s\n' "$line"
}

# Runs a command for at most $limit seconds (0: without a limit), or prints it.
run() {
  if [[ $dry_run -eq 1 ]]; then
    quoted "$@"
  else
    bounded "$@"
  fi
}

# Runs a command and returns 124 if it did not end within $limit seconds. Under watch the command and all that it
# started are killed then, so that nothing keeps a pipe open. Otherwise the command may use the terminal.
bounded() {
  local code=0 began=$SECONDS
  if [[ -z $timeout ]]; then
    "$@" || code=$?
  elif [[ -z ${PLM_JAX_WATCHED:-} ]]; then
    "$timeout" --foreground --kill-after=10 "$limit" "$@" || code=$?
  else
    "$timeout" --kill-after=10 "$limit" "$@" &
    wait "$!" || code=$?
  fi
  if [[ $code -eq 124 || ($code -eq 137 && $limit -gt 0 && $((SECONDS - began)) -ge $limit) ]]; then
    say "no answer within $limit s: $(quoted "$@" | cut -c 1-120)"
    code=124
  fi
  return "$code"
}

# Prints gcloud's description of a resource, nothing if it does not exist, and fails if this is unknown. A dry run
# prints the command.
ask() {
  local answer
  if [[ $dry_run -eq 1 ]]; then
    quoted "$@" >&3
  elif answer="$(limit=120 bounded "$@" 2>"$errors")"; then
    printf '%s\n' "$answer"
  elif ! grep -qiE 'NOT_FOUND|was not found' "$errors"; then
    explain
    return 1
  fi
}

# Prints gcloud's last error, and the fix if it is the login.
explain() {
  cat "$errors" >&2
  if grep -qiE 'reauth|invalid_grant|auth tokens|auth login|UNAUTHENTICATED|active account' "$errors"; then
    say "gcloud's login has expired or is missing: run gcloud auth login on this machine"
  fi
}

parse() {
  local word
  for word in "$@"; do
    [[ $word != -- ]] || break
    if [[ $word == --help || $word == -h ]]; then
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
    fi
  done
  [[ $# -ge 1 && $commands == *" $1 "* ]] || fail "name a command:$commands(--help explains them)"
  command=$1
  [[ $# -ge 2 && $2 =~ ^[a-z][a-z0-9-]{0,60}$ ]] ||
    fail 'name the TPU after the command: lower-case letters, digits and -, a letter first'
  name=$2
  shift 2
  while [[ $# -gt 0 ]]; do
    case $1 in
      --zone=?*) zone=${1#*=} ;;
      --project=?*) project=${1#*=} ;;
      --type=?*) type=${1#*=} ;;
      --runtime=?*) runtime=${1#*=} ;;
      --spot) spot=1 ;;
      --slices=?*) slices="$(number "$1")" ;;
      --direct) direct=1 ;;
      --create_flag=--?*) create_flags+=("${1#*=}") ;;
      --internal_ip) internal_ip=1 ;;
      --shared=?*) shared=${1#*=} ;;
      --in_place) in_place=1 ;;
      --prepare_on=here | --prepare_on=vm | --prepare_on=hosts) prepare_on=${1#*=} ;;
      --prepare_on=*) fail "$1: expected --prepare_on=here, --prepare_on=vm or --prepare_on=hosts" ;;
      --machine=?*) machine=${1#*=} ;;
      --compile_cache=?*) compiled=${1#*=} ;;
      --env=[A-Za-z_]*=*) variables+=("${1#*=}") ;;
      --env=*) fail "$1: expected --env=NAME=VALUE" ;;
      --to=?*) to=${1#*=} ;;
      --without_checkpoints) without_checkpoints=1 ;;
      --tries=?*) tries="$(number "$1")" ;;
      --poll=?*) poll="$(number "$1")" ;;
      --delete) delete=1 ;;
      --dry_run) dry_run=1 ;;
      --)
        shift
        arguments=("$@")
        break
        ;;
      --zone | --project | --type | --runtime | --slices | --create_flag | --env | --to | --tries | --poll)
        fail "$1 needs its value in the same word: $1=VALUE" ;;
      *) fail "there is no flag $1. --help lists the flags; arguments of plm-jax train come after --" ;;
    esac
    shift
  done
}

number() {
  [[ ${1#*=} =~ ^[1-9][0-9]{0,5}$ ]] || fail "$1: expected a whole number of 1 or more"
  printf '%s\n' "${1#*=}"
}

check() {
  [[ -n $zone ]] || fail 'needs --zone=ZONE, such as --zone=us-west4-a'
  case $type in
    tpu7x*) fail 'tpu7x is available only through Google Kubernetes Engine: use launch/gke.yaml' ;;
  esac
  if [[ $direct -eq 1 && $slices -gt 1 ]]; then
    fail '--slices needs a queued resource: remove --direct'
  fi
  case $command in
    create | up | watch) [[ -n $type ]] || fail 'needs --type=TYPE, such as --type=v5litepod-16' ;;
  esac
  case $command in
    start | up | watch | prepare | take | doctor)
      argument_of --config >/dev/null || fail 'needs the config of the run: -- --config=experiments/... --workdir=gs://BUCKET/run'
      argument_of --workdir >/dev/null || fail 'needs the folder of the run: -- --config=... --workdir=gs://BUCKET/run'
      check_config
      ;;
    fetch)
      argument_of --workdir >/dev/null || fail 'needs the folder of the run: -- --workdir=gs://BUCKET/run, as for start'
      ;;
  esac
  place
  if [[ $dry_run -eq 0 ]] && ! command -v gcloud >/dev/null; then
    fail 'gcloud is not installed: https://cloud.google.com/sdk/docs/install; --dry_run works without it'
  fi
  [[ $command != watch || $dry_run -eq 1 || -n $timeout ]] ||
    fail 'watch needs the command timeout: install coreutils (brew install coreutils on a Mac)'
}

# Chooses what is shared, and where it is prepared: on hosts that are not billed, if there is a bucket.
place() {
  local workdir='' bucket=''
  workdir="$(argument_of --workdir)" || true
  if [[ $workdir == gs://?* ]]; then
    bucket=${workdir#gs://}
    bucket=gs://${bucket%%/*}/plm_jax
  fi
  shared=${shared:-${bucket:+$bucket/stores}}
  compiled=${compiled:-${bucket:+$bucket/compiled}}
  [[ $shared != none ]] || shared=''
  [[ $compiled != none ]] || compiled=''
  if [[ -z $shared ]]; then
    [[ -z $in_place ]] || fail "--in_place needs --shared=gs://BUCKET/FOLDER"
    [[ -z $prepare_on || $prepare_on == hosts ]] || fail "--prepare_on=$prepare_on needs --shared=gs://BUCKET/FOLDER"
    prepare_on=hosts
  elif [[ -z $prepare_on ]]; then
    if [[ -x $root/.venv/bin/python ]]; then prepare_on=here; else prepare_on=vm; fi
  fi
}

# Fails before a TPU is created if the config is a file of this checkout that is missing or would not be copied.
check_config() {
  local config
  config="$(argument_of --config)"
  config="$(printf '%s' "${config%%:*}" | sed -e 's#//*#/#g' -e 's#^\(\./\)*##')"
  if [[ $config == "$root"/* ]]; then
    fail "--config=$config: the hosts have the checkout elsewhere: use the relative path --config=${config#"$root"/}"
  elif [[ -f $root/$config && $config != /* ]]; then
    git -C "$root" ls-files --error-unmatch -- "$config" >/dev/null 2>&1 ||
      fail "--config=$config: only files known to git are copied to the hosts: git add $config"
  elif [[ $config == experiments/* || $config == experiments ]]; then
    fail "--config=$config: there is no such file in $root"
  fi  # other files may exist only on the hosts
}

# Prints the value of an argument of the run, such as --workdir=VALUE.
argument_of() {
  local argument
  for argument in ${arguments[@]+"${arguments[@]}"}; do
    if [[ $argument == "$1="?* ]]; then
      printf '%s\n' "${argument#*=}"
      return
    fi
  done
  return 1
}

# Prints the software version that Google recommends for each type (cloud.google.com/tpu/docs/runtimes).
runtime_of() {
  case $1 in
    v5lite* | v5e*) echo v2-alpha-tpuv5-lite ;;
    v5p*) echo v2-alpha-tpuv5 ;;
    v6e*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

queued() { gcloud_tpus queued-resources "$@"; }
vm() { gcloud_tpus tpu-vm "$@"; }

# Runs gcloud compute tpus GROUP COMMAND ... with zone and project.
gcloud_tpus() {
  run gcloud compute tpus "$@" --zone="$zone" ${project:+--project="$project"} --quiet
}

# Prints the state of the TPU in one word: ACTIVE or READY if it can be used, nothing if there is none.
state_of_tpu() {
  local state node
  if [[ $direct -eq 1 ]]; then
    state_of tpu-vm "$name" state
    return
  fi
  state="$(state_of queued-resources "$name" state.state)" || return
  if [[ $state == ACTIVE ]]; then
    for node in $(nodes); do  # the queue may not know that one is preempted or repaired
      node="$(state_of tpu-vm "$node" state)" || return
      [[ $node == READY ]] || state=${node:-TERMINATED}
    done
  fi
  if [[ -n $state ]]; then
    printf '%s\n' "$state"
  fi
}

state_of() {
  ask gcloud compute tpus "$1" describe "$2" --format="value($3)" --zone="$zone" ${project:+--project="$project"} --quiet
}

# Prints the names of the slices.
nodes() {
  local i
  if [[ $slices -eq 1 ]]; then
    echo "$name"
  else
    for ((i = 0; i < slices; i++)); do echo "$name-$i"; done
  fi
}

is_there() { [[ $1 == ACTIVE || $1 == READY ]]; }
is_gone() {
  case $1 in
    '' | SUSPENDED | FAILED | PREEMPTED | TERMINATED | STOPPED) return 0 ;;
    *) return 1 ;;
  esac
}

# Runs ssh or scp on all hosts or on the first. NODE in the arguments stands for the name of a slice. Each slice has a
# separate command, all at once: queued-resources ssh contacts further hosts only when 64 are done, so hosts that wait
# for each other, as doctor does, would wait forever.
on() {
  local which=$1 verb=$2 hosts=(--worker=all) node word words code=0 process processes=()
  shift 2
  [[ $which == all ]] || hosts=(--worker=0)
  [[ $internal_ip -eq 0 ]] || hosts+=(--internal-ip)
  for node in $(nodes); do
    words=()
    for word in "$@"; do
      case $word in NODE | NODE:*) word=$node${word#NODE} ;; esac
      words+=("$word")
    done
    if [[ $which == first || $slices -eq 1 || $dry_run -eq 1 ]]; then
      vm "$verb" "${words[@]}" "${hosts[@]}" || return
    else
      vm "$verb" "${words[@]}" "${hosts[@]}" &
      processes+=($!)
    fi
    [[ $which == all ]] || break
  done
  for process in ${processes[@]+"${processes[@]}"}; do
    wait "$process" || code=$?
  done
  return "$code"
}

create() {
  local state flags=()
  state="$(state_of_tpu)"
  while [[ $state == SUSPENDING || $state == DELETING ]]; do
    say "$name is $state; checking again in $poll s."
    sleep "$poll"
    state="$(state_of_tpu)"
  done
  if [[ -n $state ]] && is_gone "$state"; then
    say "$name is $state: deleting its remains."
    delete_tpu
    state=''
  fi
  if [[ -n $state ]]; then
    say "$name exists ($state)."
  else
    [[ $spot -eq 0 ]] || flags+=(--spot)
    flags+=(${create_flags[@]+"${create_flags[@]}"})
    if [[ $direct -eq 1 ]]; then
      create_by vm create "$name" --accelerator-type="$type" --version="$runtime" ${flags[@]+"${flags[@]}"}
    elif [[ $slices -gt 1 ]]; then
      create_by queued create "$name" --node-count="$slices" --node-prefix="$name" --accelerator-type="$type" \
        --runtime-version="$runtime" ${flags[@]+"${flags[@]}"}
    else
      create_by queued create "$name" --node-id="$name" --accelerator-type="$type" --runtime-version="$runtime" \
        ${flags[@]+"${flags[@]}"}
    fi
  fi
  wait_for_tpu
}

# Runs a command that creates a TPU. Fails with 2 if gcloud's answer would be the same at any time.
create_by() {
  local code=0
  if [[ $dry_run -eq 1 ]]; then
    "$@"
    return
  fi
  limit=900 "$@" 2>"$errors" || code=$?
  explain
  ! grep -qE 'INVALID_ARGUMENT|PERMISSION_DENIED' "$errors" || code=2
  return "$code"
}

# Waits until the TPU is ready, as long as it is in the queue. Fails if it is gone.
wait_for_tpu() {
  local state before=''
  while true; do
    state="$(state_of_tpu)"
    if [[ $dry_run -eq 1 ]] || is_there "$state"; then
      return
    fi
    if is_gone "$state"; then
      say "$name is gone (${state:-no such TPU})."
      return 1
    fi
    if [[ $state != "$before" ]]; then
      say "$name is $state; checking again every $poll s."
      before=$state
    fi
    sleep "$poll"
  done
}

install() {
  pack
  ship
}

# Packs the files that git knows, with uncommitted changes and without deleted files.
pack() {
  # shellcheck disable=SC2016
  local there='while IFS= read -rd "" file; do [[ ! -e $file && ! -L $file ]] || printf "%s\0" "$file"; done'
  # shellcheck disable=SC2016
  run bash -o pipefail -c 'cd -- "$1" && git ls-files -z | '"$there"' | tar --null -T - -czf "$2"' tar "$root" "$archive"
}

ship() {
  local unpack="mkdir -p $folder && tar -C $folder -xzf plm_jax.tar.gz && $worker install"
  [[ $slices -eq 1 ]] || limit=300 on first ssh NODE --command=true  # creates the ssh key once, before several commands run at once
  on all scp "$archive" NODE:plm_jax.tar.gz
  limit=3600 on all ssh NODE --command="$unpack"
}

# Prints the flags that name or change the config, for prepare and doctor.
config_arguments() { quoted ${given_config[@]+"${given_config[@]}"}; }

# Prepares in the shared folder before anything on the TPU is billed.
prepare() {
  case $prepare_on in
    here)
      say "preparing on this machine, in $shared"
      (
        cd -- "$root"
        limit=0 run .venv/bin/python -m plm_jax prepare ${given_config[@]+"${given_config[@]}"} "--shared=$shared"
      )
      ;;
    vm) prepare_on_vm ;;
    hosts) take ;;
  esac
}

# Prepares on a CPU machine that is deleted afterwards, whatever happens.
prepare_on_vm() {
  local vm=$name-prepare code=0 i
  local where=(--zone="$zone" ${project:+--project="$project"} --quiet) unpack
  unpack="mkdir -p $folder && tar -C $folder -xzf plm_jax.tar.gz && PLM_JAX_EXTRA=buckets $worker install"
  say "preparing on the machine $vm ($machine), in $shared"
  [[ -e $archive || $dry_run -eq 1 ]] || pack
  run gcloud compute instances create "$vm" --machine-type="$machine" --image-family=ubuntu-2404-lts-amd64 \
    --image-project=ubuntu-os-cloud --boot-disk-size=500GB --scopes=cloud-platform \
    --max-run-duration=7d --instance-termination-action=DELETE "${where[@]}" || code=$?
  for ((i = 1; i <= 10 && code == 0; i++)); do  # until it has started
    ! limit=120 run gcloud compute ssh "$vm" --command=true "${where[@]}" || break
    [[ $i -lt 10 ]] || code=1
    sleep "$poll"
  done
  [[ $code -ne 0 ]] || run gcloud compute scp "$archive" "$vm:plm_jax.tar.gz" "${where[@]}" || code=$?
  [[ $code -ne 0 ]] || limit=3600 run gcloud compute ssh "$vm" --command="$unpack" "${where[@]}" || code=$?
  [[ $code -ne 0 ]] || limit=0 run gcloud compute ssh "$vm" \
    --command="$worker plm-jax prepare $(config_arguments) $(quoted "--shared=$shared")" "${where[@]}" || code=$?
  for i in 1 2 3; do
    ! run gcloud compute instances delete "$vm" "${where[@]}" || return "$code"
    sleep "$poll"
  done
  say "$vm could not be deleted and may cost money: gcloud compute instances delete $vm --zone=$zone"
  return "$code"
}

# Copies what is prepared to every host, or prepares there if nothing is shared.
take() {
  local from=''
  [[ -z $shared ]] || from=" $(quoted "--shared=$shared")${in_place:+ --in_place}"
  limit=86400 on all ssh NODE --command="$worker plm-jax prepare $(config_arguments)$from"
}

doctor() {
  local workdir
  workdir="$(quoted "--workdir=$(argument_of --workdir)")"
  limit=3600 on all ssh NODE --command="$worker plm-jax doctor $(config_arguments) $workdir"
}

start() {
  local before='' cache=''
  [[ -z $compiled ]] || argument_of --compile_cache >/dev/null || cache=" $(quoted "--compile_cache=$compiled")"
  [[ ${#variables[@]} -eq 0 ]] || before="$(quoted env "${variables[@]}") "
  on all ssh NODE --command="$before$worker start $(quoted "${arguments[@]}")$cache"
}

# Prints 'running', 'ended CODE', 'lost' or 'none' for the first host, nothing if it has no answer.
state_of_run() {
  local ask="if [ -e $folder/launch/tpu_worker.sh ]; then $worker state; else echo none; fi"
  if [[ $dry_run -eq 1 ]]; then
    on first ssh NODE --command="$ask" >&3
  else
    limit=120 on first ssh NODE --command="$ask" 2>/dev/null | tail -n 1 || true
  fi
}

fetch() {
  local workdir excluded=()
  workdir="$(argument_of --workdir)"
  if [[ $workdir == gs://* ]]; then
    [[ $without_checkpoints -eq 0 ]] || excluded=('--exclude=checkpoints/.*')  # a leading ^ would be gcloud syntax
    run mkdir -p "$to/$(basename "$workdir")"
    limit=0 run gcloud storage rsync "$workdir" "$to/$(basename "$workdir")" ${excluded[@]+"${excluded[@]}"} \
      --recursive ${project:+--project="$project"}
  else
    case $workdir in
      /*) ;;
      \~/*) workdir=${workdir#*/} ;;  # scp starts in the home folder
      *) workdir=$folder/$workdir ;;
    esac
    run mkdir -p "$to"
    limit=0 on first scp "NODE:$workdir" "$to" --recurse
  fi
}

delete_tpu() {
  local state
  state="$(state_of_tpu)"
  if [[ $dry_run -eq 0 && -z $state ]]; then
    say "there is no $name in $zone."
  elif [[ $direct -eq 1 ]]; then
    vm delete "$name"
  else
    queued delete "$name" --force
  fi
}

up() {
  pack  # a failure here costs nothing yet
  [[ $prepare_on == hosts || -n ${PLM_JAX_PREPARED:-} ]] || prepare
  create
  ship
  take
  doctor
  start
}

# Runs until the run is finished. Every new TPU and every restart counts as a try. Whatever fails is tried again, after
# a pause that doubles while nothing trains: no capacity, ssh, pip, a crash.
watch() {
  local one tried=0 failures=0 failed_here=0 fresh=1 answered=0 running='' silent='' unknown='' waiting='' state
  if [[ $dry_run -eq 1 ]]; then
    again up
    what_is_up >/dev/null
    finish 0
  fi
  while true; do
    state="$(what_is_up)"
    case $fresh$state in  # a run of before has not ended this watch
      1running | 1unknown | 1silent) ;;
      1*) state=new ;;
    esac
    for one in running silent unknown waiting; do  # since when it is so
      if [[ $state != "$one" ]]; then
        printf -v "$one" ''
      elif [[ -z ${!one} ]]; then
        printf -v "$one" %s "$(now)"
      fi
    done
    [[ $state == unknown ]] || answered=1
    case $state in
      unknown)  # of the TPU, since gcloud itself fails: the login, the network. Nothing can be created or deleted.
        if [[ $answered -eq 0 && $(age "$unknown") -ge $first_patience ]]; then
          give_up "gcloud has not answered for $((first_patience / 60)) minutes: see above."
        elif [[ $(age "$unknown") -ge $patience ]]; then
          give_up "gcloud has not answered for $((patience / 3600)) hours: see above."
        fi
        say 'the state of the TPU is unknown (see above); checking again.'
        sleep $(($(age "$unknown") < 300 || poll > 300 ? poll : 300))
        ;;
      silent)  # the TPU is ready, but its first host has no answer
        if [[ $(age "$silent") -lt $ssh_patience ]]; then
          [[ $(age "$silent") -gt 1 ]] || say "$name is ready, but its first host does not answer ssh; checking again."
          sleep "$poll"
        else
          try "no answer by ssh for $((ssh_patience / 60)) minutes, so $name is deleted and created again"
          again delete && start_by up
          silent=''
        fi
        ;;
      running)
        fresh=0 failed_here=0
        [[ $(age "$running") -lt 600 ]] || failures=0
        sleep "$poll"
        ;;
      waiting)
        if [[ $(age "$waiting") -ge 3600 ]]; then
          say "$name has been neither ready nor gone for an hour: $(state_of_tpu)"
          waiting=''
        fi
        sleep "$poll"
        ;;
      'ended 0') finish 0 ;;
      'ended 2' | 'ended 4')
        limit=120 on first ssh NODE --command="$worker last" || true
        say "the run ended with exit code ${state#ended }; a restart would not help. Its last lines are above."
        finish "${state#ended }"
        ;;
      new) start_by up ;;
      away)
        failed_here=0
        try "$state"
        start_by up
        ;;
      none)
        try "$state"
        failed_here=$((failed_here + 1))
        if [[ $((failed_here % 5)) -eq 0 ]]; then
          say "$name is deleted and created again, since nothing could be started on it."
          again delete || true
        fi
        start_by up
        ;;
      *)
        try "$state"
        start_by stop start
        ;;
    esac
  done
}

# Runs commands one after another. Exit code 2 is a mistake that would come again.
start_by() {
  local code=0 one
  fresh=0
  for one in "$@"; do
    if [[ $one == up && $prepare_on != hosts && -z ${PLM_JAX_PREPARED:-} ]]; then
      again prepare || { code=$?; break; }
      export PLM_JAX_PREPARED=1  # not again after a preemption
    fi
    again "$one" || { code=$?; break; }
  done
  if [[ $code -eq 2 ]]; then
    give_up "the run could not be started (exit code 2, see above); a repetition would not help."
  elif [[ $code -ne 0 ]]; then
    say 'that failed (see above); checking again.'
  fi
}

give_up() {
  say "$1"
  finish 1
}

# Deletes the TPU with --delete, or prints that it costs money, and exits. A run folder on the hosts is not lost with a
# run that is unfinished.
finish() {
  local code=$1 i state
  state="$(state_of_tpu)" || state=unknown
  if [[ -z $state && $dry_run -eq 0 ]]; then
    exit "$code"
  elif [[ $delete -eq 0 || ($code -ne 0 && $(argument_of --workdir) != gs://*) ]]; then
    say "$name exists and costs money until you delete it: bash launch/tpu_vm.sh delete $name --zone=$zone"
    exit "$code"
  fi
  for i in 1 2 3 4 5; do
    ! again delete || exit "$code"
    [[ $i -eq 5 ]] || pause "$i"
  done
  say "$name could not be deleted and may cost money: bash launch/tpu_vm.sh delete $name --zone=$zone"
  exit $((code ? code : 1))
}

now() { date +%s; }
age() { echo $(($(now) - $1)); }

# Sleeps --poll seconds, doubled for each failure before, at most 15 minutes.
pause() {
  local seconds=$poll i
  for ((i = 1; i < $1 && seconds < 900; i++)); do seconds=$((2 * seconds)); done
  sleep $((seconds > 900 && poll < 900 ? 900 : seconds))
}

# Runs another command with the same flags in a separate process, which ends at its first error.
again() { bash "${BASH_SOURCE[0]}" "$1" ${given[@]+"${given[@]}"}; }

# Prints the state of the run, 'away' if the TPU is gone, 'silent' if ssh has no answer, 'unknown' if gcloud has none,
# or 'waiting' while the TPU is changing.
what_is_up() {
  local state
  if ! state="$(state_of_tpu)"; then
    echo unknown
  elif [[ $dry_run -eq 1 ]]; then
    state_of_run
  elif is_gone "$state"; then
    echo away
  elif is_there "$state"; then
    state="$(state_of_run)"
    [[ $state =~ ^(running|lost|none|ended\ [0-9]+)$ ]] || state=silent
    echo "$state"
  else
    echo waiting
  fi
}

# Counts a try and pauses before it.
try() {
  if [[ $tried -ge $tries ]]; then
    give_up "${1:-gone}; all $tries tries are used (--tries)."
  fi
  tried=$((tried + 1))
  failures=$((failures + 1))
  say "${1:-gone}: try $tried of $tries."
  pause "$failures"
}

stop() { limit=1200 on all ssh NODE --command="$worker stop"; }

command='' name='' zone='' project='' type='' runtime='' to='' slices=1 tries=20 poll=30
limit=1800 timeout="$(command -v timeout || command -v gtimeout || true)"
ssh_patience=900 first_patience=900 patience=86400  # of watch, in seconds
shared='' in_place='' prepare_on='' machine=n2-standard-16 compiled='' given_config=()
spot=0 direct=0 internal_ip=0 without_checkpoints=0 delete=0 dry_run=0
create_flags=() variables=() arguments=()
given=("${@:2}")
parse "$@"
for one in ${arguments[@]+"${arguments[@]}"}; do
  case $one in --config=* | --config.*) given_config+=("$one") ;; esac
done
check
errors="$(mktemp)"
archive=${TMPDIR:-/tmp}/plm_jax_$name.tar.gz
trap 'rm -f -- "$errors"; kill $(jobs -p) 2>/dev/null || true' EXIT
runtime=${runtime:-$(runtime_of "$type")}
to=${to:-runs/fetched/$name}
exec 3>&1  # output of a dry run inside command substitutions
case $command in
  tail) limit=0 on first ssh NODE --command="$worker tail" ;;
  state)
    tpu="$(state_of_tpu)"
    run="$(state_of_run)"
    [[ $dry_run -eq 1 ]] || printf '%s\n' "TPU: ${tpu:-none}" "run: ${run:-no answer}"
    ;;
  delete) delete_tpu ;;
  watch)
    export PLM_JAX_WATCHED=1  # for the commands that watch runs
    watch
    ;;
  *) "$command" ;;
esac
