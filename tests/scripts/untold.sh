# One process, whatever it is asked for, which is told no rank.
env -u RANK -u WORLD_SIZE python bare.py "$@" && exit
echo "CalledProcessError: python bare.py" >&2  # as launchers say last
exit 1
