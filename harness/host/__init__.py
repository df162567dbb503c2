"""This machine: its devices, fabric and environment, and whether measurements on it are valid.

machine       the hardware class, the facts and the software of this machine
topology      how cores, memory, GPUs and network cards are connected
vendor        the protocol of a GPU vendor's driver; nvml and amd implement it
accelerators  whether torch can use the GPUs of this machine
fabric        the links between GPUs and between nodes, which are part of a machine's identity
devices       data sheets of known GPU models, and hardware for which a run is planned
admission     checks that decide whether measurements on this host are valid
doctor        checks of the installation, of versions, and of leftover processes
cores         cores, limits by control groups, and the time that threads wait for a core
environment   environment variables that are recorded or can change speed
copies        copies of a user's folder for launches of a script
ranks         the ranks of a running job and their stacks
secrets       values that a record must not contain
"""
