# One process, whatever it is asked for, which is told no rank.
exec env -u RANK -u WORLD_SIZE python bare.py "$@"
