"""The parts of a user's module, whatever it says of itself.

Users override ``parameters`` (to give groups to an optimizer), lengths, truth and words: torch's
own methods are asked, past those of the module. A lazy layer that was never called has none yet.
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
        for child in reversed(list(nn.Module.children(module))):
            if id(child) not in seen:
                seen.add(id(child))
                left.append(child)


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all of them, each once, in their order."""
    seen = set[int]()
    for module in modules(root):
        for parameter in nn.Module.parameters(module, recurse=False):
            if id(parameter) not in seen and not is_lazy(parameter):
                seen.add(id(parameter))
                yield parameter
