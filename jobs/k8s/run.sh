#!/usr/bin/env bash
# bash jobs/k8s/run.sh [--render] NODES [BATCH SEQ STEPS]
#
# Runs hpcbench on NODES nodes of a Kubernetes cluster that has the Kubeflow MPI operator (v2beta1):
# fills in a manifest, checks that the cluster can take the job, creates it, shows what its launcher
# prints, copies the results to ./results/NAME and the logs of all pods to ./results/NAME/logs,
# deletes the job, and ends with its exit code: 0 all is well, 1 bad findings, 2 bad usage or a
# cluster that does not take the job, 3 incomplete or not copied, 4 internal error. Ctrl-C,
# or a lost terminal, has the ranks seal what there is, and copies that; a second Ctrl-C before copying
# begins deletes the job at once. If copying fails, or Ctrl-C ends it, the job stays, and commands that
# copy and delete it are printed. --render prints the manifest, and needs no cluster.
#
#     bash jobs/k8s/run.sh 4                              # Mistral-7B QLoRA on 1, 2 and 4 A10
#     bash jobs/k8s/run.sh 2 4 1024 50                    # batch 4, sequence 1024, 50 steps a pass; 8 512 8
#     HPCBENCH_CONFIG=my.json bash jobs/k8s/run.sh 2      # any sweep, by mpijob.yaml
#
# HPCBENCH_IMAGE         the image, of jobs/k8s/Dockerfile; must be set
# HPCBENCH_CONFIG        the sweep; default: jobs/mistral7b_qlora.yaml, the QLoRA job, on nodes with A10
# HPCBENCH_ARGUMENTS     further arguments of run, one line, split at blanks
# HPCBENCH_MPI           mpich (default) or openmpi: the MPI that the image was built with
# HPCBENCH_SLOTS         ranks on each node; default 1; of the QLoRA job hardware.num_devices, too
# HPCBENCH_CPUS          cores that a node's pod asks for, for each rank: write the cores of a node / its
#                        GPUs, less what Kubernetes keeps; default 2, of the QLoRA job 8
# HPCBENCH_GPU           the resource of which a node's pod takes as many; default nvidia.com/gpu; none
# HPCBENCH_NAMESPACE     default: that of kubectl's context
# HPCBENCH_NAME          of job and results folder; default: hpcbench- and the time
# HPCBENCH_CLAIM         a PersistentVolumeClaim (ReadWriteMany) for the results, instead of the pods'
#                        own disks; the same HPCBENCH_NAME later goes on with a run that ended early
# HPCBENCH_START_LIMIT   seconds until the launcher must have started, and from then on the workers;
#                        default 1800
# HPCBENCH_TIME_LIMIT    seconds after which the running case is finished and what there is
#                        reported (exit 3); default 7200, of the QLoRA job 3 hours for each number of
#                        ranks above 1 (2, 4 and so on). Finishing may take 10 minutes and a quarter of
#                        the limit; then mpirun is killed, and what was recorded is copied (exit 137)
# HPCBENCH_UNCHECKED     checks to leave out: nodes (the job waits for nodes and GPUs to become free,
#                        or for an autoscaler), policies (network policies), plan (of the sweep), or
#                        several: 'nodes policies'
# HPCBENCH_MANIFEST      a manifest of yours in place of mpijob.yaml or mistral7b_qlora_a10.yaml
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
poll_s=2
. "$here/checks.sh"
. "$here/results.sh"

say() { echo "hpcbench k8s: $*"; }

fail() {
    echo "hpcbench k8s: $*" >&2
    exit 2
}

kube() { kubectl ${namespace:+--namespace "$namespace"} "$@"; }

# number NAME VALUE: fail unless VALUE is a whole number above 0.
number() {
    [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || fail "$1 is '$2': give a whole number above 0"
}

# Set the settings from arguments and variables, and check them.
settle() {
    local word
    render=
    if [ "${1:-}" = --render ]; then render=yes && shift; fi
    [ $# = 1 ] || [ $# = 4 ] || fail "give NODES, or NODES BATCH SEQ STEPS (--help explains)"
    nodes=$1 batch=${2:-} seq=${3:-} steps=${4:-}
    slots=${HPCBENCH_SLOTS:-1} cpus=${HPCBENCH_CPUS:-} gpu=${HPCBENCH_GPU:-nvidia.com/gpu}
    start_limit=${HPCBENCH_START_LIMIT:-1800} time_limit=${HPCBENCH_TIME_LIMIT:-}
    number NODES "$nodes"
    if [ $# = 4 ]; then number BATCH "$batch" && number SEQ "$seq" && number STEPS "$steps"; fi
    number HPCBENCH_SLOTS "$slots"
    number HPCBENCH_START_LIMIT "$start_limit"
    ranks=$((nodes * slots))
    namespace=${HPCBENCH_NAMESPACE:-} claim=${HPCBENCH_CLAIM:-} image=${HPCBENCH_IMAGE:-}
    [[ $gpu =~ ^[A-Za-z0-9][A-Za-z0-9./_-]*$ ]] || fail "HPCBENCH_GPU is '$gpu': such as nvidia.com/gpu"
    [[ $claim =~ ^[a-z0-9.-]*$ ]] || fail "HPCBENCH_CLAIM is '$claim': name a PersistentVolumeClaim"
    [[ $image =~ ^[A-Za-z0-9][A-Za-z0-9._:/@-]*$ ]] ||
        fail "HPCBENCH_IMAGE is '$image': name the image made from jobs/k8s/Dockerfile"
    name=${HPCBENCH_NAME:-hpcbench-$(date +%Y%m%d-%H%M%S)} run=$(date +%s)-$$
    [[ $name =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] && [ ${#name} -le 45 ] ||
        fail "HPCBENCH_NAME is '$name': small letters, digits and -, 45 at most, a letter first"
    unchecked=${HPCBENCH_UNCHECKED:-}
    for word in $unchecked; do
        [[ $word =~ ^(nodes|policies|plan)$ ]] || fail "HPCBENCH_UNCHECKED has '$word': some of nodes, policies, plan"
    done
    case ${HPCBENCH_MPI:-mpich} in
        mpich) mpi=MPICH ;;
        openmpi) mpi=OpenMPI ;;
        *) fail "HPCBENCH_MPI is '$HPCBENCH_MPI': mpich or openmpi" ;;
    esac
    choose_sweep
    number HPCBENCH_CPUS "$cpus"
    number HPCBENCH_TIME_LIMIT "$time_limit"
    patience=$((2 * start_limit + time_limit + 600 + time_limit / 4)) # the last two: of launcher.sh
    lifetime=$((patience + 1800))                                     # what is left is for copying
}

# Set $sweep, $manifest, $arguments and, where none is given, $cpus and $time_limit: of the QLoRA job, or
# those of a sweep of the user's.
choose_sweep() {
    local worlds=() world=2 further=() qlora=$here/../mistral7b_qlora.yaml
    arguments=() sweep=${HPCBENCH_CONFIG:-$qlora}
    if ! [ "$sweep" -ef "$qlora" ]; then
        [ -z "$batch" ] || fail "BATCH SEQ STEPS are the QLoRA job's: use HPCBENCH_ARGUMENTS instead"
        manifest=$here/mpijob.yaml cpus=${cpus:-2} time_limit=${time_limit:-7200}
    else
        manifest=$here/mistral7b_qlora_a10.yaml cpus=${cpus:-8}
        if [ "$slots" -gt 1 ]; then arguments+=(--set "hardware.num_devices=$slots"); fi
        while [ $world -lt "$ranks" ]; do worlds+=("$world") && world=$((2 * world)); done
        if [ "$ranks" -gt 1 ]; then
            worlds+=("$ranks")
            arguments+=(--set "benchmarks.1.world_size=[$(IFS=, && echo "${worlds[*]}")]")
        fi
        # `hpcbench plan` has 1 to 2 hours for each number of ranks, at rates that are assumed
        time_limit=${time_limit:-$((10800 * (${#worlds[@]} + (ranks == 1))))}
        if [ -n "$batch" ]; then
            for block in 0 1; do
                arguments+=(--set "benchmarks.$block.batch_size=$batch")
                arguments+=(--set "benchmarks.$block.seq_length=$seq")
            done
            arguments+=(--set "measure.iterations=$steps")
        fi
    fi
    [[ ${HPCBENCH_ARGUMENTS:-} != *$'\n'* ]] || fail "HPCBENCH_ARGUMENTS has a line break: give one line"
    read -r -a further <<<"${HPCBENCH_ARGUMENTS:-}"
    arguments+=(${further[@]+"${further[@]}"})
    manifest=${HPCBENCH_MANIFEST:-$manifest}
    [ -r "$sweep" ] || fail "HPCBENCH_CONFIG: cannot read $sweep"
    [[ $sweep != *.py ]] || fail "$sweep: Python code does not travel: put it into the image, and name it in a sweep of JSON or YAML (kind function, file)"
    [ "$(wc -c <"$sweep")" -lt 900000 ] || fail "$sweep: a ConfigMap takes less than 1 MB"
    [ -r "$manifest" ] || fail "HPCBENCH_MANIFEST: cannot read $manifest"
}

# Set $memory, GiB that a node's pod asks for, and say so if the plan takes longer than the limit; fail
# for a sweep that is wrong. All need hpcbench on PATH; else it is 4 GiB for each rank.
plan_ahead() {
    local seconds= need= problem=
    if command -v hpcbench >/dev/null && ! is_left_out plan >&2; then
        read -r seconds need problem < <(hpcbench plan "$sweep" --world-size "$ranks" --json \
            ${arguments[@]+"${arguments[@]}"} 2>/dev/null | python3 "$here/judge.py" plan) ||
            problem="hpcbench plan prints nothing"
        if [ "$seconds" = refuse ]; then
            fail "$problem (where the image has a plug-in that knows it: HPCBENCH_UNCHECKED=plan)"
        elif [ -n "$problem" ]; then
            say "not planned: $problem" >&2
            seconds=0 need=4
        fi
        if [ "$seconds" -gt "$time_limit" ]; then
            say "the plan takes about $seconds s, HPCBENCH_TIME_LIMIT is $time_limit: cases will be left out" >&2
        fi
    fi
    memory=$((slots * ${need:-4}))
}

# Print the manifest with the settings in it.
render() {
    local text list='[' word limits='{}' volume='emptyDir: {}' suffix=json
    case $sweep in *.yaml | *.yml | *.YAML | *.YML) suffix=yaml ;; esac
    for word in ${arguments[@]+"${arguments[@]}"}; do # words of a list in JSON
        word=${word//\\/\\\\}
        list+="\"${word//\"/\\\"}\", "
    done
    if [ "$gpu" != none ]; then limits="{$gpu: \"$slots\"}"; fi
    if [ -n "$claim" ]; then volume="persistentVolumeClaim: {claimName: $claim}"; fi
    text=$(<"$manifest")
    # the sweep last: what it says of its own is not ours to fill in
    for word in "NAME=$name" "RUN=$run" "IMAGE=$image" "NODES=$nodes" "SLOTS=$slots" \
        "CPUS=$((slots * cpus))" "QLORA_MEMORY=$((slots * 32))Gi" "MEMORY=${memory}Gi" \
        "RANKS=$ranks" "MPI_IMPLEMENTATION=$mpi" "SWEEP_FILE=sweep.$suffix" \
        "ARGUMENTS=${list%, }]" "WORKER_LIMITS=$limits" "RESULTS_VOLUME=$volume" \
        "START_LIMIT=$start_limit" "TIME_LIMIT=$time_limit" \
        "LIFETIME=$lifetime" "SWEEP=$(sed 's/^/    /' "$sweep")"; do
        text=${text//"\${${word%%=*}}"/"${word#*=}"}
    done
    printf '%s\n' "$text"
}

delete_job() {
    local code=$?
    trap '' INT TERM HUP
    [ -z "$stream" ] || kill "$stream" 2>/dev/null
    if [ $code != 130 ]; then copy_logs; fi # else it is to be gone at once
    rmdir "results/$name" 2>/dev/null
    say "deleting job $name"
    kube delete mpijobs.kubeflow.org,configmaps --selector "hpcbench-run=$run" \
        --ignore-not-found --wait=false >/dev/null ||
        say "could not: kubectl delete mpijob,configmap -l hpcbench-run=$run" >&2
}

create_job() {
    local told
    stream= logged=yes # nothing is ours before it is created
    trap '' PIPE         # a tee that Ctrl-C has ended, too, must not end this
    trap delete_job EXIT # of this run only: another job of this name is left alone
    told=$(render | kube create -f - 2>&1) || fail "the cluster refuses the job: $(tr '\n' ' ' <<<"$told")"
    logged=
    say "created job $name: $nodes nodes, $ranks ranks, $mpi, $image"
}

# launcher_says JSONPATH: print something about the launcher's pod.
launcher_says() {
    kube get pods --selector "training.kubeflow.org/job-name=$name,training.kubeflow.org/job-role=launcher" \
        --output "jsonpath={.items[*]$1}"
}

# pods_say JSONPATH: print something about each pod; no line may break inside its braces.
pods_say() {
    kube get pods --selector "training.kubeflow.org/job-name=$name" --output "jsonpath=$1" 2>/dev/null
}

# Print one line for each pod that does not run, with the reason.
troubles() {
    local query='{range .items[*]}{.metadata.name} {.status.phase} {.status.reason} {.status.message} '
    query+='{.status.conditions[?(@.status=="False")].message} '
    query+='{.status.containerStatuses[*].state.waiting.reason} '
    query+='{.status.containerStatuses[*].state.waiting.message}{"\n"}{end}'
    pods_say "$query" | grep -v -e ' Running ' -e ' Succeeded ' -e '-launcher Failed ' | tr -s ' '
}

# Set $pending if a worker has not started; fail if an image cannot be had: the cluster goes on trying.
look_at_pods() {
    local pod phase reason told query='{range .items[*]}{.metadata.name}|{.status.phase}|'
    query+='{.status.containerStatuses[*].state.waiting.reason}|'
    query+='{.status.containerStatuses[*].state.waiting.message}{"\n"}{end}'
    pending=
    while IFS='|' read -r pod phase reason told; do
        if [[ $pod = *-worker-* && $phase = Pending ]]; then pending=yes; fi
        case $reason in *ImagePullBackOff* | *InvalidImageName* | *ErrImageNeverPull*)
            fail "pod $pod cannot have the image $image ($reason): ${told:-no message}; is its name" \
                "right, is it pushed, and does it need imagePullSecrets?" ;;
        esac
    done < <(pods_say "$query")
}

# Wait while workers are pending; the launcher, which waits for them, too, gives up at its limit.
wait_for_workers() {
    while look_at_pods && [ "$pending" ] && [ "$(launcher_says .status.phase)" = Running ]; do
        sleep "$poll_s"
    done
}

# Wait until the launcher has started; set $launcher.
wait_for_launcher() {
    local deadline=$((SECONDS + start_limit)) phase=
    launcher=
    trap 'exit 130' INT TERM HUP
    until phase=$(launcher_says .status.phase) && [[ $phase =~ ^(Running|Succeeded|Failed)$ ]] &&
        launcher=$(launcher_says .metadata.name) && [ "$launcher" ]; do
        if [ $SECONDS -ge $deadline ]; then
            troubles >&2
            [ "$phase" ] || fail "the job has no launcher after $start_limit s: is the operator running?" \
                "kubectl describe mpijob $name"
            fail "the launcher did not start in $start_limit s"
        fi
        look_at_pods
        sleep "$poll_s"
    done
}

# Have the ranks seal what there is, once; they get a minute.
interrupt() {
    trap 'exit 130' INT TERM
    trap '' HUP
    say "stopping: the ranks seal what there is (once more: delete the job at once)"
    interrupted=yes end=$((SECONDS + 60))
    kube exec "$launcher" --container launcher -- sh -c 'kill -TERM 1' && return
    say "the launcher is not to be reached: what there is is copied as it is" >&2
    end=$SECONDS
}

# Show what the launcher prints until it has ended, or is given up: then $trouble says why, and
# $running that ranks may still write. A stream that breaks off is taken up again.
follow() {
    local phase since=()
    interrupted= trouble= running=running end=$((SECONDS + patience - start_limit + 300))
    trap interrupt INT TERM HUP
    while :; do
        # not by kube: the process to end is kubectl
        kubectl ${namespace:+--namespace "$namespace"} logs --follow "$launcher" --container launcher \
            ${since[@]+"${since[@]}"} &
        stream=$!
        while kill -0 "$stream" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.5; done
        { kill "$stream" && wait "$stream"; } 2>/dev/null
        stream=
        if phase=$(launcher_says .status.phase); then
            case $phase in
                Succeeded | Failed) running= && return ;;
                '')
                    trouble="the launcher's pod is gone: the job was deleted, or its node was lost"
                    return ;;
            esac
        fi
        if [ $SECONDS -ge $end ]; then
            [ "$interrupted" ] || trouble="the launcher is still ${phase:-unknown} long after its time limit"
            return
        fi
        since=(--since=$((poll_s + 10))s) # lines of these seconds may come twice
        sleep "$poll_s"
    done
}

# Copy the results, and end with the launcher's exit code.
finish() {
    local code kept=
    missing=" 0 "
    trap 'keep; exit 130' INT TERM HUP
    code=$(launcher_says '.status.containerStatuses[?(@.name=="launcher")].state.terminated.exitCode')
    if copy_results; then copy_logs; else copy_logs && keep; kept=yes; fi
    trap 'exit 130' INT TERM HUP
    [ -z "$trouble" ] || fail "$trouble"
    if [[ ! $code =~ ^[0-9]+$ ]]; then
        [ -z "$interrupted" ] || exit 130
        fail "the launcher left no exit code: $(launcher_says '.status.reason') $(launcher_says '.status.message')"
    fi
    if [ "$code" != 0 ]; then troubles >&2; fi
    say "exit code $code"
    if [ "$code" = 0 ] && [ "$kept" ]; then exit 3; fi
    exit "$code"
}

case ${1:-} in
    -h | --help)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
        exit 0 ;;
esac
settle "$@"
plan_ahead
if [ "$render" ]; then
    render
    exit
fi
check_cluster
open_folder
create_job
wait_for_launcher
wait_for_workers
follow
finish
