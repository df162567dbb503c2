# What prolog.sh and epilog.sh share; edit it.
SCALEPROOF=${SCALEPROOF:-/opt/scaleproof/.venv/bin/scaleproof}
RESULTS=${RESULTS:-/var/tmp/scaleproof}
REFERENCES=${REFERENCES:-/opt/scaleproof/results/baselines}
mkdir -p "$RESULTS"
