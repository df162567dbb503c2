"""Shorten the C++ names of kernels to what distinguishes them."""

import re

#: Parts of names that all kernels of a library have in common.
_COMMON = re.compile(r"\b(void|static|at::native::|at::|c10::|std::|cutlass::|cub::|thrust::)\s*")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
#: The functor that a kernel applies, which distinguishes it from other kernels of one template.
_FUNCTOR = re.compile(r"\w*Functor\w*|\w+_kernel_impl\b|\w+_kernel_cuda\b|\w+Ops?\b")
#: Templates of torch that apply a functor to each element, or reduce by it.
_TEMPLATES = re.compile(r"\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel")
#: A template whose first argument is the kernel.
_WRAPPERS = re.compile(r"Kernel2?|device_kernel")


def short(name: str) -> str:
    """Return a kernel's name without parameters, and without template arguments but the functor.

    Other names are returned unchanged.
    """
    if "<" not in name and "(" not in name:
        return name
    bare = _COMMON.sub("", _ANONYMOUS.sub("", name))
    head = bare.partition("<")[0].partition("(")[0].strip()
    if not head:
        return name
    last = head.rsplit("::", 1)[-1]
    if _WRAPPERS.fullmatch(last) and (inner := re.search(r"<(\w+)", bare)) is not None:
        return inner[1]
    if not _TEMPLATES.fullmatch(last):
        return last
    functors = [match[0] for match in _FUNCTOR.finditer(bare[len(head) :])]
    return f"{last}<{functors[0]}>" if functors else last
