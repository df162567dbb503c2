"""Select the environment variables to record, and those that can change the speed of a run.

No other module decides this.
"""

import hashlib
import os
import re
from collections.abc import Mapping

from harness.host import secrets

#: Variables of libraries that a training uses to compute, communicate or allocate memory. Their
#: values are recorded.
_LIBRARIES = re.compile(
    r"^((NCCL|RCCL|GLOO|TORCH\w*|PYTORCH|CUDA|CUBLAS\w*|CUDNN|NVIDIA|HSA|HIP|KINETO|ROCR|MIOPEN|TRITON"
    r"|OMP|GOMP|KMP|MKL|DNNL|ONEDNN|ATEN|OPENBLAS|BLIS|TBB|NUMEXPR|NVPL|UCX|FI|PSM2|SHARP|OMPI|I_MPI"
    r"|MPICH|MV2|MALLOC|SCALEPROOF)_|(LD_PRELOAD|LD_BIND_NOW|GLIBC_TUNABLES|PYTHONMALLOC"
    r"|PYTHONOPTIMIZE|PYTHONWARNINGS|LD_LIBRARY_PATH)$)"
)
#: Variables of a user's session, a shell, a terminal, a job or a CI service. They are not recorded,
#: because no training reads them.
_SESSION = re.compile(
    r"^(SCALEPROOF_(SUBMITTED|WRITABLE)|HOME|USER|LOGNAME|PWD|OLDPWD|SHELL|SHLVL|PATH|MANPATH|INFOPATH|MAIL|HOST|HOSTNAME|HOSTTYPE"
    r"|TERM|COLORTERM|COLUMNS|LINES|LANG|LANGUAGE|TZ|PS[0-9]|PAGER|EDITOR|VISUAL|DISPLAY|WINDOWID"
    r"|TMP|TEMP|TMPDIR|TMUX|STY|VENV|DEBIAN_FRONTEND|_|\w*_proxy|\w*_PROXY|CI"
    r"|(LC|LS|LESS|XDG|SSH|DBUS|TERM|HIST|TMUX|SUDO|GPG|GIT|PIP|UV|CONDA|PYENV|VIRTUAL|NVM|npm|NPM"
    r"|NODE|JAVA|JOURNAL|INVOCATION|SYSTEMD|WAYLAND|GTK|QT|GNOME|KDE|DESKTOP|SESSION|WSL|VSCODE"
    r"|PYTEST|HYPOTHESIS|COVERAGE|COV|TOX|GITHUB|GITLAB|CI|BUILD|JENKINS|RUNNER|SLURM\w*|PBS|LSB"
    r"|KUBERNETES|PROMPT|STARSHIP|ZSH|BASH|FZF|DIRENV)_?\w*)$"
)
#: Largest number of variables that a message names.
SHOWN = 16
_DIGEST = "sha256 "
_BACKENDS = ("nccl", "gloo")
#: Variables that do not change speed: time-outs, addresses, logging, and the variables with which a
#: launcher identifies a process.
_NO_SPEED = re.compile(
    r"TIMEOUT|DEBUG|LOG|WARNINGS|DUMP|COMM_ID|HOSTID|_VERSION$|^TORCHELASTIC_"
    r"|^OMPI_(?!MCA_)|^OMPI_MCA_(ess|orte|pmix|shmem_RUNTIME|initial_wdir)"
)
#: Variables with paths of torch and CUDA, which do not change speed either. Variables with paths of
#: a communication backend can change speed, because they may name a topology, a tuning plan or a
#: plugin.
_PLACES = re.compile(r"TRACE|VERBOSE|HOME|PATH|DIR|FILE|VISIBLE_DEVICES|^SCALEPROOF_", re.I)


def changes_speed(name: str) -> bool:
    """Return whether a difference in this variable can make two runs differ in speed."""
    backends = name.lower().startswith(tuple(f"{b}_" for b in _BACKENDS))
    if _NO_SPEED.search(name) or not _LIBRARIES.match(name):
        return False
    return backends or not _PLACES.search(name)


def recorded() -> dict[str, str]:
    """Return the variables to record: all except secrets and those of a session.

    If no known library reads a variable, only a digest of its value is recorded. The digest shows
    whether two runs had the same value without revealing it.
    """
    variables = secrets.kept(
        {key: value for key, value in os.environ.items() if not _SESSION.match(key)}
    )
    return {
        name: value if _LIBRARIES.match(name) else _digest(value)
        for name, value in sorted(variables.items())
    }


def of_libraries() -> str:
    """Return the variables that libraries read, such as ``GLOO_LOG_LEVEL=1``; empty without any."""
    variables = secrets.kept(
        {name: value for name, value in os.environ.items() if _LIBRARIES.match(name)}
    )
    names = sorted(name for name in variables if not name.startswith("SCALEPROOF_"))
    return ", ".join(f"{name}={variables[name]}" for name in names[:SHOWN])


def is_digest(value: str) -> bool:
    """Return whether a recorded value is only a digest."""
    return value.startswith(_DIGEST)


def _digest(value: str) -> str:
    """Return the digest that is recorded in place of a value."""
    return f"{_DIGEST}{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def of_backends(*backends: str) -> dict[str, str]:
    """Return the variables of these backends that can change speed and are not secrets.

    These variables are part of a case. Without arguments, the backends are NCCL and gloo.
    """
    prefixes = tuple(f"{backend.upper()}_" for backend in backends or _BACKENDS)
    variables = secrets.kept(dict(sorted(os.environ.items())))
    return {
        key: variable
        for key, variable in variables.items()
        if key.startswith(prefixes) and changes_speed(key)
    }


def of_backend(name: str) -> bool:
    """Return whether a variable belongs to a backend and can change speed.

    For example, ``NCCL_ALGO`` can change speed, and ``NCCL_DEBUG`` cannot.
    """
    return name.startswith(tuple(f"{b.upper()}_" for b in _BACKENDS)) and changes_speed(name)


def names_interface(name: str) -> bool:
    """Return whether a variable names a network interface, which each node may set differently."""
    return name.endswith("_IFNAME")


def switched_off(variables: Mapping[str, str], *, infiniband: bool, num_gpus: int) -> list[str]:
    """Return a sentence for each connection of the hardware that a variable switches off."""
    switches = {
        "NCCL_IB_DISABLE": (infiniband, "InfiniBand"),
        "NCCL_P2P_DISABLE": (num_gpus > 1, "direct transfers between GPUs"),
        "NCCL_SHM_DISABLE": (num_gpus > 1, "shared memory between ranks"),
    }
    return [
        f"{what} is switched off by {name}={variables[name]}, although this hardware has it"
        for name, (has, what) in switches.items()
        if has and variables.get(name, "0") != "0"
    ]
