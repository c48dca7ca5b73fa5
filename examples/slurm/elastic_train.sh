#!/bin/bash
# An elastic training on the nodes of a Slurm job, which continues after it was stopped. docs/elastic.md, "The example".
#
#   sbatch --nodes 4 --ntasks-per-node 2 elastic_train.sh --epochs 20
#
# The launcher runs on the first node, and starts workers on all nodes by srun. Slurm signals this script a minute before
# its time limit. The workers then commit, the lowest rank saves its state, and the job waits in the queue again.
# From its next start it continues after the saved step. The same holds for `scancel --signal=TERM --batch JOB`.
#
# WEFT and PROGRAM: the programs, if they are not in PATH. STATE: a folder that all nodes share.
#SBATCH --job-name=elastic_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
set -u
state=${STATE:-$PWD/elastic_train.$SLURM_JOB_ID}
mkdir -p "$state"
[ -s "$state/secret" ] || (umask 077; openssl rand -hex 32 >"$state/secret")

slots=${SLURM_NTASKS_PER_NODE:-1}
"${WEFT:-weft}" launch --min 2 --max $((SLURM_JOB_NUM_NODES * slots)) --discovery slurm --slots "$slots" --rsh srun \
  --rendezvous "${RENDEZVOUS:-$(hostname):$((15000 + SLURM_JOB_ID % 15000))}" --secret "$state/secret" --grace 40s \
  "${PROGRAM:-elastic_train}" --checkpoint "$state" --out "$state" "$@" &
launcher=$!
stopped=
trap 'stopped=yes; kill -TERM $launcher' TERM
wait $launcher
status=$?
if [ -n "$stopped" ]; then
  wait $launcher
  status=$?
  [ $status = 0 ] || scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
