"""A simulated device that refuses what a GPU refuses, while the host computes.

Tensors have the device ``strict:0`` (torch's PrivateUse1, in Python only). It refuses tensors of two
devices in one operator (except what CUDA accepts: single values, and indices on the host), numpy
of a device's tensor, generators of the host, and fp32 in kernels that do not support it. Allocations
are counted per storage, so that peaks are real. It has one queue, whose speed ``rates`` sets; races
between streams and asynchronous errors do not occur here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from strict.rates import QUEUE

NAME = "strict"
torch.utils.rename_privateuse1_backend(NAME)
aten = torch.ops.aten


HERE = torch.device(NAME, 0)


class Memory:
    """Bytes of the device's live storages, now and at the peak; ``used``: the device was started."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.used = False
        self._holders: dict[int, int] = {}

    def hold(self, tensor: Strict, raw: torch.Tensor) -> None:
        self.used = True
        storage = raw.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._holders[key] = self._holders.get(key, 0) + 1
        if self._holders[key] == 1:
            self.now += size
            self.peak = max(self.peak, self.now)
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self.now -= size


MEMORY = Memory()


#: torch expects a device's tensor class in a module of its own.
sys.modules["torch.strict_device"] = sys.modules[__name__]


class Generator(torch._C.Generator):
    """Random numbers of the device; operators get another Python object of the same one."""

    known: set[int] = set()  # noqa: RUF012
    device = HERE  # type: ignore[assignment]

    def __init__(self) -> None:
        self.known.add(self._cdata)


class _Kind(type):
    def __instancecheck__(cls, made: object) -> bool:
        return isinstance(made, torch._C.Generator)


class AnyGenerator(metaclass=_Kind):
    """``torch.Generator``: of the host, or of the device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return Generator() if torch.device(device).type == NAME else torch._C.Generator(device)


#: The default generator of the device.
USUAL = Generator()


class Strict(torch.Tensor):
    """A tensor of the device; ``raw`` is the host tensor with the data."""

    __module__ = "torch.strict_device"  # a real device's tensors are torch's own
    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor, requires_grad: bool = False) -> Strict:
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, layout=raw.layout, device=HERE, requires_grad=requires_grad,
        )  # fmt: skip
        made.raw = raw
        MEMORY.hold(made, raw)
        return made

    def __repr__(self, *_: object, **__: object) -> str:
        return f"Strict({self.raw})"

    __str__ = __repr__

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.raw.detach().numpy(force=True)
        raise TypeError(
            f"can't convert {HERE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to"
            " host memory first."
        )

    def __array__(self, *_: object) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def record_stream(self, _: object) -> None:
        return None

    def is_pinned(self, *_: object) -> bool:
        return False

    @property  # type: ignore[misc]
    def data(self) -> Strict:
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, Strict):
            raise RuntimeError("incompatible tensor type")
        self.raw = other.raw
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]

    def __deepcopy__(self, known: dict[int, Any]) -> Any:
        if id(self) not in known:
            made = Strict(self.raw.clone(), self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                made = torch.nn.Parameter(made, self.requires_grad)
            known[id(self)] = made
        return known[id(self)]

    def __reduce_ex__(self, _: object) -> Any:
        return _loaded, (self.raw.detach().clone(), self.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def _loaded(raw: torch.Tensor, requires_grad: bool) -> Strict:
    return Strict(raw, requires_grad)


#: Operators that copy between devices.
ACROSS = {
    "aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_local_scalar_dense", "aten::copy",
}  # fmt: skip
#: Namespaces of operators between ranks.
SENT = {"c10d::send", "c10d::recv_", "c10d::recv_any_source_"}
#: Operators where CUDA accepts host indices; a host tensor accepts no indices on the device.
INDEXED = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index", "aten::_unsafe_index_put",
}  # fmt: skip


def _refuse(name: str, other: torch.Tensor) -> None:
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {HERE} and"
        f" {other.device}! (in {name})"
    )


#: Operators without torch's tag that accept a single host value, as on CUDA.
SINGLE = {
    "aten::masked_fill", "aten::masked_fill_", "aten::index_fill", "aten::index_fill_",
    "aten::fill_", "aten::fill", "aten::_foreach_mul_", "aten::_foreach_mul", "aten::_foreach_add_",
    "aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_", "aten::clamp", "aten::clamp_",
    "aten::lerp", "aten::lerp_", "aten::where", "aten::scatter", "aten::scatter_",
    "aten::_amp_foreach_non_finite_check_and_unscale_",
}  # fmt: skip


def _check(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    """Raise RuntimeError for what CUDA would refuse, too."""
    name = func._schema.name
    if name in SENT and dist.ProcessGroup.unbox(args[1])._get_backend_name() == "gloo":
        raise RuntimeError(f"writev: Bad address: gloo reads {name}'s pointer as the host's")
    if name in ACROSS:
        return
    first = args[0] if args else None
    if name in INDEXED:
        values = [x for x in args[2:] if isinstance(x, torch.Tensor) and x.dim()]
        for x in [first, *values] if isinstance(first, torch.Tensor) else values:
            if not isinstance(x, Strict):
                _refuse(name, x)
        return
    # Tensors that are written: in place, a list of them, or out=.
    written = tree_flatten((first if name.endswith("_") else None, kwargs.get("out")))[0]
    mask = args[1] if name.startswith("aten::masked_fill") and len(args) > 1 else None
    pointwise = torch.Tag.pointwise in func.tags or name in SINGLE
    for x in (x for x in tensors if not isinstance(x, Strict)):
        if x.dim() or x is mask or any(x is w for w in written) or not pointwise:
            _refuse(name, x)


def _raw(x: Any) -> Any:
    return x.raw if isinstance(x, Strict) else x


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run the same call on the host."""
    given = dict(kwargs)
    if given.get("pin_memory"):
        given["pin_memory"] = False
    if given.get("device") is not None and torch.device(given["device"]).type == NAME:
        given["device"] = torch.device("cpu")
    return given


def _random(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run with the device's generator; raise RuntimeError for one of the host."""
    if not any(a.name == "generator" for a in func._schema.arguments):
        return kwargs
    given = kwargs.get("generator")
    if given is not None and given._cdata not in Generator.known:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    return {**kwargs, "generator": given or USUAL}


#: Whether an operator of torch.distributed is running: it passes unwrapped tensors to a group.
UNWRAPPED = [False]


@contextlib.contextmanager
def _collective(func: Any) -> Iterator[None]:
    before, UNWRAPPED[0] = UNWRAPPED[0], "c10d" in func.namespace or UNWRAPPED[0]
    try:
        yield
    finally:
        UNWRAPPED[0] = before


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute one operator with tensors of the device among its arguments."""
    name = func._schema.name
    if name == "aten::set_" and isinstance(args[0], Strict) and isinstance(args[1], Strict):
        args[0].data = args[1]
        return args[0]
    special = SPECIAL.get(name)
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    if any(isinstance(x, Strict) for x in tensors):
        _check(func, args, kwargs, tensors)
        kwargs = _random(func, kwargs)
    wanted = kwargs.get("device")
    leaves = wanted is not None and torch.device(wanted).type != NAME
    if func is aten._to_copy.default and wanted is None:
        leaves = not isinstance(args[0], Strict)
    args_, kwargs_ = tree_map(_raw, args), _on_host(tree_map(_raw, kwargs))
    with _collective(func):
        out = (special or func)(*args_, **kwargs_)
    QUEUE.compute(func, args_, kwargs_, out)
    known = {id(x.raw): x for x in tensors if isinstance(x, Strict)}
    hosts = {id(x) for x in tensors if not isinstance(x, Strict)}

    def wrapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or isinstance(x, Strict) or id(x) in hosts:
            return x
        if id(x) in known:
            return known[id(x)]
        return x if leaves else Strict(x)

    return tree_map(wrapped, out)


def _attention(query: Any, key: Any, value: Any, mask: Any = None, p: float = 0.0,
               causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
    """Choose flash attention if allowed, which has no fp32, else matrix products, as CUDA does."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    if torch.backends.cuda.flash_sdp_enabled() and half and mask is None:
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        return aten._scaled_dot_product_flash_attention(query, key, value, p, causal, scale=scale)[
            0
        ]
    if torch.backends.cuda.math_sdp_enabled():
        return aten._scaled_dot_product_attention_math(
            query, key, value, mask, p, causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    raise RuntimeError("No available kernel. Aborting execution.")


def _flash(query: Any, key: Any, value: Any, p: float = 0.0, causal: bool = False,
           debug: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, p, causal, scale=scale
    )
    length, keys = query.shape[2], key.shape[2]
    seed = torch.zeros((), dtype=torch.int64)
    empty = torch.empty(0)
    return out, lse, empty, empty, length, keys, seed, seed, empty


def _flash_back(grad: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, _a: Any, _b: Any,
                _c: int, _d: int, p: float, causal: bool, _e: Any, _f: Any,
                *, scale: float | None = None) -> Any:  # fmt: skip
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, lse, p, causal, scale=scale
    )


#: Operators of devices that the host lacks or names differently.
SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::record_stream": lambda *_: None,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_back,
}

#: Operators that autocast computes in lower precision, and in fp32, on CUDA (autocast_mode.h).
LOWER = (
    "conv1d", "conv2d", "matmul", "linear", "mm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "prelu", "einsum", "scaled_dot_product_attention",
)  # fmt: skip
FP32 = (
    "softmax.int", "log_softmax.int", "cross_entropy_loss", "nll_loss", "mse_loss", "layer_norm",
    "rms_norm", "norm.Scalar", "exp", "log", "pow.Tensor_Scalar", "rsqrt", "sum", "sum.dim_IntList",
    "cumsum", "prod", "renorm",
)  # fmt: skip


def _cast(x: Any, dtype: torch.dtype) -> Any:
    narrow = isinstance(x, Strict) and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return x.to(dtype) if narrow and x.dtype is not dtype else x


def _autocasts(library: torch.library.Library) -> None:
    """Register kernels of autocast, which every backend has to provide."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    for names, lower in ((LOWER, True), (FP32, False)):
        for full in names:
            name, _, overload = full.partition(".")
            op = getattr(getattr(aten, name), overload or "default")

            def kernel(*args: Any, _op: Any = op, _lower: bool = lower, **kwargs: Any) -> Any:
                dtype = torch.get_autocast_dtype(NAME) if _lower else torch.float32
                with torch._C._ExcludeDispatchKeyGuard(key):
                    cast = tree_map(lambda x: _cast(x, dtype), (args, kwargs))
                    return _op(*cast[0], **cast[1])

            with contextlib.suppress(RuntimeError):  # named differently in this torch
                library.impl(full, kernel, "AutocastPrivateUse1")


_NO_FACTORIES = (
    "sparse", "quantized", "cudnn", "mkldnn", "nested", "_make_dep_token", "from_file",
    "_efficientzerotensor",
)  # fmt: skip


def _factories() -> Iterator[tuple[str, Any]]:
    """Register operators that create a tensor on a device."""
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::") or any(word in full for word in _NO_FACTORIES):
            continue
        name, _, overload = full[6:].partition(".")
        try:
            op = getattr(getattr(aten, name), overload or "default")
        except (AttributeError, RuntimeError):
            continue
        schema = op._schema
        given = [(a.name, str(a.type)) for a in schema.arguments]
        makes = len(schema.returns) == 1 and "Tensor" in str(schema.returns[0].type)
        if makes and "device" in dict(given) and not any("Tensor" in kind for _, kind in given):
            yield full[6:], op


class Event:
    """A position in the queue, which can be read only after it was recorded."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **_: Any) -> None:
        if device is not None and torch.device(device).type != NAME:
            raise RuntimeError(f"Backend {torch.device(device).type} doesn't support events")
        self.at: float | None = None
        self.timed = enable_timing

    def record(self, stream: Any = None) -> None:
        self.at = QUEUE.ends_at()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, other: Event) -> float:
        if not (self.timed and other.timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or other.at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (other.at - self.at)


class Stream:
    """The one queue."""

    stream_id = 0

    device = HERE

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def wait_stream(self, other: Any) -> None:
        return None

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Any:
        made = event or Event()
        made.record()
        return made

    def synchronize(self) -> None:
        return None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _module() -> types.ModuleType:
    """Make ``torch.strict``, with the functions that torch and FSDP need of a backend."""
    made, queue = types.ModuleType(f"torch.{NAME}"), Stream()
    given: dict[str, Any] = dict(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
        device_count=num_devices, current_device=lambda: 0, set_device=_select,
        synchronize=QUEUE.wait, manual_seed=USUAL.manual_seed,
        manual_seed_all=USUAL.manual_seed, get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_device_name=lambda d=None: "NVIDIA Strict", current_stream=lambda d=None: queue,
        default_stream=lambda d=None: queue, stream=lambda s: s or queue, Stream=Stream, Event=Event,
        empty_cache=lambda: None, get_rng_state=lambda d=None: USUAL.get_state(),
        set_rng_state=lambda s, d=None: USUAL.set_state(s), _is_compiled=lambda: True,
        get_rng_state_all=lambda: [USUAL.get_state()], memory_stats=lambda d=None: {},
        set_rng_state_all=lambda s: USUAL.set_state(s[0]), memory=types.SimpleNamespace(
            _record_memory_history=lambda **_: None,
            _dump_snapshot=lambda path: Path(path).touch(),
        ),
    )  # fmt: skip
    for name, what in given.items():
        setattr(made, name, what)
    return made


def _select(device: Any) -> None:
    """Accept only the process's one device: torch's autograd supports no other."""
    index = device if isinstance(device, int) else torch.device(device).index
    if index:
        raise RuntimeError(f"{NAME}: invalid device ordinal")
    MEMORY.used = True


def _stats(_: Any = None) -> dict[str, int]:
    if not MEMORY.used:
        return {}
    return {
        "allocated_bytes.all.peak": MEMORY.peak, "reserved_bytes.all.peak": MEMORY.peak,
        "inactive_split_bytes.all.peak": 0, "num_alloc_retries": 0,
    }  # fmt: skip


def _forget(_: Any = None) -> None:
    if not MEMORY.used:
        raise RuntimeError("Invalid device argument ")  # as CUDA's allocator says before its start
    MEMORY.peak = MEMORY.now


_KEPT: list[torch.library.Library] = []


def install() -> None:
    """Make ``strict`` torch's accelerator, and make it look like NVIDIA's; once per process."""
    if _KEPT:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_module())
    library = torch.library.Library("aten", "IMPL")
    _KEPT.append(library)

    def factory(op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Strict:
            given = _on_host({**_random(op, kwargs), "device": torch.device("cpu")})
            return Strict(op(*args, **given))

        return kernel

    for name, op in _factories():
        library.impl(name, factory(op), "PrivateUse1")

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        _raw(target).copy_(_raw(source))
        return target

    library.impl("_copy_from", copy_from, "PrivateUse1")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library.impl("scaled_dot_product_attention", _attention, key)
    _autocasts(library)
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _KEPT.append(every)
    torch.Generator = AnyGenerator  # type: ignore[assignment, misc]
    torch.Event = Event  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment, method-assign]
    torch.serialization.add_safe_globals([_loaded])
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    _as_accelerator()
    _as_nvidia()


def _as_accelerator() -> None:
    """Set what torch's Python hooks for backends do not cover."""
    here = torch.accelerator
    here.device_count = num_devices  # type: ignore[assignment]
    here.set_device_index = _select  # type: ignore[assignment]
    here.current_device_index = lambda: 0  # type: ignore[assignment]
    here.synchronize = QUEUE.wait  # type: ignore[assignment]
    here.memory_allocated = lambda d=None: MEMORY.now  # type: ignore[assignment]
    here.max_memory_allocated = lambda d=None: MEMORY.peak  # type: ignore[assignment]
    here.reset_peak_memory_stats = _forget  # type: ignore[assignment]
    here.memory_stats = _stats  # type: ignore[assignment]


def num_devices() -> int:
    """Return the number of devices that the simulated NVML reports."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([x for x in visible.split(",") if x])
    return int(os.environ.get("STRICT_GPUS", "2"))


#: The machine's device that this process uses: torch allows one, with index 0. None before a device
#: was selected.
chosen: int | None = None


def _number(device: int | torch.device) -> int:
    """Return a visible device's number on its machine; raise RuntimeError for another device than
    this process's, which would belong to another rank.
    """
    if isinstance(device, int) and chosen is not None and device != chosen:
        raise RuntimeError(f"{NAME}: this process has device {chosen}, and asks for {device}")
    index = device if isinstance(device, int) else chosen or 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[index]) if visible[0].isdigit() else index


def _as_nvidia() -> None:
    """Replace the functions of torch.cuda that are called before anything is computed."""
    torch.cuda.device_count = num_devices  # type: ignore[assignment]
    torch.cuda.is_available = lambda: num_devices() > 0  # type: ignore[assignment]
    torch._utils._get_available_device_type = lambda: NAME  # type: ignore[assignment]
    torch.cuda.get_arch_list = lambda: ["sm_90"]  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda i=0: types.SimpleNamespace(  # type: ignore[assignment]
        uuid=f"5741c700-0000-0000-0000-{_number(i):012}",
        name="NVIDIA Strict",
        major=9,
        minor=0,
        total_memory=8 << 30,
    )
