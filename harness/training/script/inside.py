"""List the parts of a user's module with torch's own methods.

Users override ``parameters`` (to pass groups to an optimizer), ``__len__``, ``__bool__`` and
``__repr__``. The functions here therefore call methods of ``nn.Module`` directly. A module of
another process (``RemoteModule``) has no parts here, and a lazy layer has no parts before its first
call.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Path = tuple[str, ...]
#: Largest number of parts into which a model is divided for digests.
MOST_PARTS = 32
#: The attribute names under which wrappers store the wrapped module.
_WRAPPED = {
    "module", "_orig_mod", "_forward_module", "_original_module", "_fsdp_wrapped_module"
}  # fmt: skip


def modules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the module and all modules below it, each once."""
    return (module for _, module in _named_modules(root))


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of the module and of all modules below it, each once, in order."""
    return (parameter for _, parameter in _named_parameters(root))


def differs_in_eval(root: nn.Module) -> bool:
    """Return whether a forward pass may give another result in eval mode than in training mode.

    This is so if the ``forward`` of a module reads the mode. Dropout with probability 0 is the
    exception.
    """
    return any(
        0.0 not in (getattr(module, "p", None), getattr(module, "dropout", None))
        and "training" in getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
        for module in modules(root)
    )


def with_statistics(roots: Sequence[nn.Module]) -> list[str]:
    """Return the names of layers that collect statistics of this process's batches alone."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return [
        " ".join([type(module).__name__, ".".join(name for name in path if name not in _WRAPPED)])
        for root in roots
        for path, module in _named_modules(root)
        if isinstance(module, norms) and module.training and module.running_mean is not None
    ]


def buffers(roots: Sequence[nn.Module]) -> Iterator[Tensor]:
    """Yield the buffers of all roots that hold values, each once."""
    seen = set[int]()
    for module in (module for root in roots for module in modules(root)):
        for buffer in _buffers(module):
            if id(buffer) not in seen and not buffer.is_meta:
                seen.add(id(buffer))
                yield buffer


def heads(roots: Sequence[nn.Module]) -> list[str]:
    """Return the class of each root as its name, with a number if several roots have that class."""
    kinds = Counter(type(root).__name__ for root in roots)
    named = ((number, type(root).__name__) for number, root in enumerate(roots))
    return [kind if kinds[kind] == 1 else f"{kind}-{number}" for number, kind in named]


def by_part(roots: Sequence[nn.Module]) -> dict[str, list[nn.Parameter]]:
    """Map the name of each part of the roots to its parameters, each parameter once.

    A part is a module. Parts are as deep below the roots as possible with at most ``MOST_PARTS``
    parts. Parameters that a root itself holds belong to a part with the name of its class.
    """
    named = dict[int, tuple[Path, nn.Parameter]]()
    for name_of_root, root in zip(heads(roots), roots, strict=True):
        head = (name_of_root,) if len(roots) > 1 else ()
        for path, parameter in _named_parameters(root):
            inner = [name for name in path[:-1] if name not in _WRAPPED]
            named.setdefault(id(parameter), ((*head, *(inner or [type(root).__name__])), parameter))
    paths = [path for path, _ in named.values()]
    depths = range(max(map(len, paths), default=0), 0, -1)
    few = (d for d in depths if len({path[:d] for path in paths}) <= MOST_PARTS)
    depth = next(few, 0)
    parts = dict[str, list[nn.Parameter]]()
    for path, parameter in named.values():
        parts.setdefault(".".join(path[:depth]) or "model", []).append(parameter)
    return parts


def _named_modules(root: nn.Module) -> Iterator[tuple[Path, nn.Module]]:
    seen = {id(root)}
    left: list[tuple[Path, nn.Module]] = [((), root)]
    while left:
        path, module = left.pop()
        yield path, module
        for name, child in reversed(_children(module)):
            if id(child) not in seen:
                seen.add(id(child))
                left.append(((*path, name), child))


def _named_parameters(root: nn.Module) -> Iterator[tuple[Path, nn.Parameter]]:
    seen = set[int]()
    for path, module in _named_modules(root):
        for name, parameter in _parameters(module):
            if id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield (*path, name), parameter


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    try:
        return list(nn.Module.named_children(module))
    except AttributeError:  # the module has no table of children
        return []


def _buffers(module: nn.Module) -> list[Tensor]:
    try:
        return list(nn.Module.buffers(module, recurse=False))
    except AttributeError:
        return []


def _parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    try:
        return list(nn.Module.named_parameters(module, recurse=False))
    except AttributeError:
        return []
