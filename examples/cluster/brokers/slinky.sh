#!/bin/sh
# Slurm on Kubernetes (Slinky, Soperator): scaleproof uses Slurm, from a login pod that has sbatch.
# LOGIN names that pod: deploy/slurm-login-slinky with Slinky, statefulset/login with Soperator.
exec kubectl exec --namespace "${NAMESPACE:-slurm}" "${LOGIN:-deploy/slurm-login-slinky}" -- \
  scaleproof run ddp/decoder-350m/weak --engine slurm --nodes 2x8 --gpus 16 --detach
