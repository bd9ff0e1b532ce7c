#!/bin/sh
# bash jobs/health/check_stored.sh STYLE
#
# Checks the stored results of this node by its limits, within 25 s, and measures nothing: exit codes
# are those of `hpcbench check --exit-style STYLE` (slurm, nagios, npd, gpud). What takes longer, or
# is not there, is no evidence against the node.
#
#   HPCBENCH_HEALTH   folder with results.h5 and limits.yaml of this node; default: /var/lib/hpcbench
#   HPCBENCH          the program; default: hpcbench
style=${1:?usage: check_stored.sh slurm, nagios, npd or gpud}
dir=${HPCBENCH_HEALTH:-/var/lib/hpcbench}
case $style in npd) unknown=2 ;; nagios) unknown=3 ;; *) unknown=0 ;; esac
said=$(timeout -k 5 20 "${HPCBENCH:-hpcbench}" check "$dir/results.h5" --limits "$dir/limits.yaml" \
    --exit-style "$style" 2>&1)
code=$?
case $code in
    124 | 126 | 127 | 137) echo "HPCBENCH_CHECK RESULT UNREADABLE: hpcbench check ended with $code"
        exit "$unknown" ;;
esac
# the outcome first: node-problem-detector keeps the beginning
printf '%s\n' "$said" | sed -n '/^HPCBENCH_CHECK RESULT/p'
printf '%s\n' "$said" | sed '/^HPCBENCH_CHECK RESULT/d'
exit "$code"
