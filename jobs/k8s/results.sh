# How run.sh gets results to this machine; sourced by it. What is not copied is not deleted: the
# pods' disks have the only copy.

# Make results/NAME and write to it, before a cluster's hours go into what it is to hold.
open_folder() {
    local folder=$PWD/results/$name
    if [ -z "$claim" ] && [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
        fail "$folder has another run: move it, or set another HPCBENCH_NAME"
    fi
    { mkdir -p "$folder" && echo >"$folder/.written" && rm "$folder/.written"; } 2>/dev/null ||
        fail "cannot write $folder: free the disk, or start this in a folder that can be written"
}

# pattern_of WORKER: print where it has results; ranks that do not see rank 0's folder have their own.
pattern_of() { if [ "$1" = 0 ]; then echo "$name"; else echo "$name.on-*"; fi; }

# fetch WORKER: copy what is in its folder, if there is one, to results/NAME; succeed if all of it
# came through. While ranks may still write, what tar has found changed is no failure.
fetch() {
    # shellcheck disable=SC2016 # the pod's shell expands it
    kube exec "$name-worker-$1" --container worker -- sh -c \
        'cd /results && set -- "$1" $0 && [ $# = 2 ] &&
        if [ ! -e "$2" ]; then tar -czf - -T /dev/null
        else cd "$2" && { tar -czf - . || [ "$?$1" = 1running ]; }
        fi' "$(pattern_of "$1")" "$running" |
        tar -xzf - -C "results/$name"
    [ "${PIPESTATUS[*]}" = "0 0" ]
}

# copy WORKER: fetch, and again if that failed. A worker that has not started has nothing.
copy() {
    local attempt
    for attempt in 1 2 3; do
        fetch "$1" && return
        if [ "$(kube get pod "$name-worker-$1" --output 'jsonpath={.status.phase}')" = Pending ]; then
            return
        fi
        say "copying from worker $1 failed, attempt $attempt of 3" >&2
        sleep "$poll_s"
    done
    return 1
}

# Copy the results to ./results, from worker 0, where rank 0 is; unless all went well, also what the
# others have on disks of their own. Leave in $missing who could not be copied; fail if anyone.
copy_results() {
    local node
    missing=" 0 "
    if [ -z "$claim" ]; then for ((node = 1; node < nodes; node++)); do missing+="$node "; done; fi
    for node in $missing; do
        if copy "$node"; then missing=${missing/" $node "/ }; fi
        if [[ $code = 0 && $missing != " 0 "* ]]; then missing=" "; fi # no one else has anything
        [ "$missing" != " " ] || break
    done
    if [ -e "results/$name/results.h5" ] && [[ $missing != " 0 "* ]]; then
        ln -sfn "$name" results/latest
        say "results: $PWD/results/$name (also results/latest)"
    elif [ "$missing" = " " ] && rmdir "results/$name" 2>/dev/null; then
        say "there are no results" >&2
    elif [ "$missing" = " " ]; then
        say "not reported; what was recorded is in $PWD/results/$name: hpcbench reduce results/$name"
    fi
    [ "$missing" = " " ]
}

# Copy what every pod has printed, once; one that never started has printed nothing.
copy_logs() {
    local pod folder=results/$name/logs
    [ -z "$logged" ] || return 0
    logged=yes
    for pod in $(pods_say '{.items[*].metadata.name}'); do
        mkdir -p "$folder"
        kube logs "$pod" --all-containers --request-timeout=30s >"$folder/$pod.log" 2>/dev/null
        [ -s "$folder/$pod.log" ] || rm -f "$folder/$pod.log"
    done
    rmdir "$folder" 2>/dev/null || [ ! -d "$folder" ] || say "logs of the pods: $PWD/$folder"
    return 0
}

# Leave the job as it is, and say how to copy what is missing, and to delete it then.
keep() {
    local node kubectl="kubectl${namespace:+ --namespace $namespace}"
    trap - EXIT
    trap '' INT TERM HUP
    say "not all of it was copied, so the job stays, its pods for $lifetime s from their start. Copy:"
    for node in $missing; do
        echo "    $kubectl exec $name-worker-$node --container worker --" \
            "sh -c 'cd /results/$(pattern_of "$node") && tar -czf - .' | tar -xzf - -C $PWD/results/$name"
    done
    echo "and then delete it:"
    echo "    $kubectl delete mpijobs.kubeflow.org,configmaps --selector hpcbench-run=$run"
} >&2
