"""The parts of a user's module, whatever it says of itself.

Users override ``parameters`` (to give groups to an optimizer), lengths, truth and words: torch's
own methods are asked, which ask none of the module's. A module of another process has no parts here
(``RemoteModule``). A lazy layer that was never called has none yet.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import is_lazy


def modules(root: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, each once."""
    seen = {id(root)}
    left = [root]
    while left:
        module = left.pop()
        yield module
        for child in reversed(_children(module)):
            if id(child) not in seen:
                seen.add(id(child))
                left.append(child)


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all of them, each once, in their order."""
    seen = set[int]()
    for module in modules(root):
        for parameter in _parameters(module):
            if id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield parameter


def _children(module: nn.Module) -> list[nn.Module]:
    try:
        return [child for _, child in nn.Module.named_children(module)]
    except AttributeError:  # torch keeps no table in it
        return []


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    try:
        return [parameter for _, parameter in nn.Module.named_parameters(module, recurse=False)]
    except AttributeError:
        return []
