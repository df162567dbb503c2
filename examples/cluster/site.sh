# Settings of prolog.sh and epilog.sh; edit them.
SCALEPROOF=${SCALEPROOF:-/opt/scaleproof/.venv/bin/scaleproof}
RESULTS=${RESULTS:-/var/tmp/scaleproof}
REFERENCES=${REFERENCES:-/opt/scaleproof/results/baselines}
mkdir -p "$RESULTS"
