"""What a user's module consists of, whatever it says of itself.

Users override ``parameters`` (to give groups to an optimizer), lengths, truth and words. Only what
torch itself keeps of a module is read here.
"""

from collections.abc import Iterator

from torch import nn


def modules(root: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, each once."""
    seen = {id(root)}
    left = [root]
    while left:
        module = left.pop()
        yield module
        for child in reversed(list(module._modules.values())):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                left.append(child)


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all of them, each once, in their order."""
    seen = set[int]()
    for module in modules(root):
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
