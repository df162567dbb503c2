"""This machine: its devices, fabric and environment, and whether measurements on it are valid.

machine       hardware class, facts and software; topology places devices
vendor        the protocol of a GPU vendor's driver; nvml and amd implement it
fabric        the links of GPUs and nodes, part of a machine's identity
devices       known GPU models, and hardware that a run is planned for
admission     whether this host is fit to measure on, before a run
doctor        checks of the installation, old versions, leftovers of ranks
cores         cores, control-group limits and run-queue waits
environment   environment variables that change speed
copies        copies of a user's folder for launches of a script
secrets       values that no record may hold
"""
