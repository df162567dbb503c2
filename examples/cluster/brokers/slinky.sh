#!/bin/sh
# Slurm on Kubernetes (Slinky, Soperator): scaleproof sees Slurm. Type it where sbatch is, on a login pod.
# LOGIN: Slinky has deploy/slurm-login-slinky, Soperator statefulset/login.
exec kubectl exec --namespace "${NAMESPACE:-slurm}" "${LOGIN:-deploy/slurm-login-slinky}" -- \
  scaleproof run ddp/decoder-350m/weak --engine slurm --nodes 2x8 --gpus 16 --detach
