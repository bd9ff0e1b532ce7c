# What run.sh asks of the cluster before it creates anything; sourced by it. Each problem is one line,
# and after the last check they end it. What may not be seen from here is said, and is no problem.

# refuse TEXT: say what is wrong.
refuse() {
    refused=yes
    echo "hpcbench k8s: $*" >&2
}

# is_left_out CHECK: succeed, and say so, if the user wants none of it.
is_left_out() {
    [[ " $unchecked " = *" $1 "* ]] && say "not checked: $1 (HPCBENCH_UNCHECKED)"
}

# ask ARGUMENTS: set $answer to what kubectl prints; else fail, with its last line in $why.
ask() {
    answer=$(kube "$@" 2>/dev/null </dev/null) && return
    why=$(kube "$@" 2>&1 >/dev/null </dev/null)
    why=${why##*$'\n'}
    return 1
}

# judge SUBJECT ARGUMENTS: have judge.py judge what is on stdin; print nothing if all is well.
judge() {
    local verdict text
    while read -r verdict text; do
        case $verdict in
            refuse) refuse "$text" ;;
            secret) check_secret "$text" ;;
            unchecked) say "not checked: $text" ;;
        esac
    done < <(python3 "$here/judge.py" "$@" || echo "unchecked $1: judge.py failed")
}

# Fail unless there is a kubectl, a cluster that it reaches, and the operator's kind in it.
check_operator() {
    local told
    command -v kubectl >/dev/null || fail "no kubectl on PATH: install it, and point it at a cluster"
    # by discovery: to list the definitions themselves needs rights on the whole cluster
    if ! told=$(kube get --raw /apis/kubeflow.org/v2beta1 2>&1); then
        case $told in
            *NotFound* | *"could not find"*) told= ;;
            *) fail "kubectl cannot reach the cluster: ${told##*$'\n'}" ;;
        esac
    fi
    case $told in *'"mpijobs"'*) ;; *)
        fail "the cluster has no MPIJob of kubeflow.org/v2beta1: have the Kubeflow MPI operator" \
            "installed (github.com/kubeflow/mpi-operator, 0.5 or newer)" ;;
    esac
}

# Refuse a namespace that is not there, or in which the user may not do what run.sh does.
check_rights() {
    local right missing=
    if [ "$namespace" ] && ! ask get namespace "$namespace" --output name; then
        case $why in *NotFound*)
            fail "there is no namespace $namespace: create it, or set another HPCBENCH_NAMESPACE" ;;
        esac
    fi
    for right in {create,list,delete}" "{mpijobs.kubeflow.org,configmaps} "list pods" "get pods" \
        "get pods --subresource=log" "create pods --subresource=exec"; do
        # shellcheck disable=SC2086 # words
        case $(kube auth can-i $right 2>/dev/null </dev/null) in
            no*) missing+=", ${right/ --subresource=//}" ;;
        esac
    done
    [ -z "$missing" ] || fail "you may not ${missing#, } in namespace ${namespace:-of the context}:" \
        "ask for these rights, or set another HPCBENCH_NAMESPACE"
}

# Set $job to what the cluster would create; fail if it would not.
check_job() {
    local told
    job=$(render | kube create --dry-run=server --output json --filename - 2>/dev/null) && return
    told=$(render | kube create --dry-run=server --output json --filename - 2>&1 >/dev/null)
    job=
    case $told in
        *"not support dry run"*) say "not checked: ${told##*$'\n'}" ;;
        *) fail "the cluster refuses the job: $(tr '\n' ' ' <<<"$told")" ;;
    esac
}

# check_secret NAME: refuse the name of a secret that is not there.
check_secret() {
    ask get secret "$1" --output name && return
    case $why in
        *NotFound*) refuse "imagePullSecrets names $1, and there is no such secret: create it" ;;
        *) say "not checked: whether there is a secret $1: $why" ;;
    esac
}

# Refuse if too few nodes are Ready and have enough GPUs that no pod has asked for.
check_nodes() {
    local found
    is_left_out nodes && return
    if ! ask get nodes --output json; then
        say "not checked: nodes and their GPUs: $why"
        return
    fi
    found=$answer
    if [ "$gpu" != none ]; then
        if ask get pods --all-namespaces --output json; then
            found+=$answer
        else
            say "not checked: which $gpu other pods have: $why"
        fi
    fi
    judge nodes "$nodes" "$slots" "$gpu" <<<"$job$found"
}

# Refuse network policies that keep the pods of the job from each other.
check_policies() {
    is_left_out policies && return
    if ask get networkpolicies --output json; then
        judge policies "$name" <<<"$job$answer"
    else
        say "not checked: network policies: $why"
    fi
}

check_cluster() {
    local why answer job refused=
    check_operator
    check_rights
    check_job
    if ! command -v python3 >/dev/null; then
        say "not checked: nodes, network policies and secrets: no python3 on PATH"
    elif [ "$job" ]; then
        judge secrets <<<"$job"
        check_nodes
        check_policies
    fi
    [ -z "$refused" ] || exit 2
}
