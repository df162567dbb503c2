"""Context parallelism along ``cp``: three ways in which the queries of one part of the sequence
attend to the keys of all parts.

Tensors have the shape (B, heads, S / N, dim); keys and values may have fewer heads (groups). The
positions of a rank state which part of the sequence it holds. Attention is causal: a query attends
to the keys at its position and at earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


def visible(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the causal mask for these positions, bool of shape (len(queries), len(keys))."""
    return queries[:, None] >= keys[None, :]


def gathered(group: dist.ProcessGroup, places: Sequence[Tensor]) -> Attend:
    """Return attention that all-gathers keys and values, and drops keys after the last query."""
    positions = places[group.rank()]
    whole = torch.cat(list(places))
    needed = torch.nonzero(whole <= positions.max()).flatten()
    mask = visible(positions, whole[needed])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = _through(_Gather, torch.stack((k, v)), group)[:, :, :, needed]
        return functional.scaled_dot_product_attention(
            q, both[0], both[1], attn_mask=mask, enable_gqa=k.shape[1] != q.shape[1]
        )

    return attend


def ulysses(group: dist.ProcessGroup) -> Attend:
    """Return attention in which each rank computes some heads (Ulysses, Jacobs et al., 2023).

    An all-to-all gives each rank the whole sequence of its heads. A second all-to-all returns to
    each rank its part of the sequence for all heads.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (_through(_Swap, tensor, 1, 2, group) for tensor in (q, k, v))
        output = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1]
        )
        return _through(_Swap, output, 2, 1, group)

    return attend


def ring(group: dist.ProcessGroup, places: Sequence[Tensor]) -> Attend:
    """Return attention that passes keys and values around a ring of ranks (Liu et al., 2023)."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _through(_Ring, q, k, v, group, places)

    return attend


def _through(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    """Apply an autograd function to these arguments."""
    output: Tensor = function.apply(*given)
    return output


class _Gather(torch.autograd.Function):
    """An all-gather along dimension 3; backward reduce-scatters the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        n = group.size()
        received = x.new_empty((n, *x.shape))
        dist.all_gather_into_tensor(received.flatten(0, 1), x.contiguous(), group=group)
        return received.movedim(0, 3).flatten(3, 4)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        n = ctx.group.size()
        parts = gradients[0].unflatten(3, (n, -1)).movedim(3, 0).contiguous()
        gradient = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(gradient, parts.flatten(0, 1), group=ctx.group)
        return gradient, None


class _Swap(torch.autograd.Function):
    """An all-to-all that splits dimension ``cut`` and concatenates along dimension ``joined``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, joined: int, group: dist.ProcessGroup) -> Tensor:
        ctx.cut, ctx.joined, ctx.group = cut, joined, group
        return _swapped(x, cut, joined, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return _swapped(gradients[0], ctx.joined, ctx.cut, ctx.group), None, None, None


def _swapped(x: Tensor, cut: int, joined: int, group: dist.ProcessGroup) -> Tensor:
    """Split dimension ``cut`` over the ranks, and concatenate the parts along ``joined``."""
    n = group.size()
    given = x.unflatten(cut, (n, -1)).movedim(cut, 0).contiguous()
    received = torch.empty_like(given)
    dist.all_to_all_single(received, given, group=group)
    return received.movedim(0, joined).flatten(joined, joined + 1)


class _Ring(torch.autograd.Function):
    """Ring attention in fp32.

    The results for the parts of the keys are combined by their log-sum-exp (Milakov and Gimelshein,
    2018). In backward the gradients of keys and values are sent around the ring, too, until they
    reach the rank that holds the keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: dist.ProcessGroup,
        places: Sequence[Tensor],
    ) -> Tensor:
        n, rank = group.size(), group.rank()
        output = torch.zeros_like(q, dtype=torch.float32)
        logs = None
        travelling = torch.stack((k, v))
        for hop in range(n):
            of = (rank - hop) % n
            visible_part = visible(places[rank], places[of])
            if bool(visible_part.any()):
                scores = _scores(q, travelling[0], visible_part)
                log = scores.logsumexp(-1, keepdim=True)
                part = (scores - log).nan_to_num(-torch.inf, neginf=-torch.inf).exp()
                mixed = part @ _each_head(travelling[1], q).float()
                if logs is None:
                    output, logs = mixed, log
                else:
                    joined = torch.logaddexp(logs, log)
                    output = output * (logs - joined).exp() + mixed * (log - joined).exp()
                    logs = joined
            if hop < n - 1:
                travelling = _passed_on(travelling, group)
        ctx.save_for_backward(q, k, v, output, logs)
        ctx.group, ctx.places = group, places
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, logs = ctx.saved_tensors
        group, places = ctx.group, ctx.places
        n = group.size()
        rank = group.rank()
        scale = q.shape[-1] ** -0.5
        wanted = gradients[0].float()
        lost = (wanted * out).sum(-1, keepdim=True)
        of_q = torch.zeros_like(q, dtype=torch.float32)
        travelling = torch.stack((k, v))
        owed = torch.zeros_like(travelling)
        for hop in range(n):
            of = (rank - hop) % n
            visible_part = visible(places[rank], places[of])
            if bool(visible_part.any()):
                keys, values = (_each_head(x, q).float() for x in travelling)
                share = (_scores(q, travelling[0], visible_part) - logs).exp()
                of_scores = share * (wanted @ values.transpose(-1, -2) - lost) * scale
                of_q += of_scores @ keys
                owed[0] += _each_group(of_scores.transpose(-1, -2) @ q.float(), k)
                owed[1] += _each_group(share.transpose(-1, -2) @ wanted, k)
            if hop < n - 1:
                travelling = _passed_on(travelling, group)
            owed = _passed_on(owed, group)
        return of_q.to(q.dtype), owed[0], owed[1], None, None


def _each_head(x: Tensor, q: Tensor) -> Tensor:
    """Repeat keys or values so that each head of the queries has its own copy."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _each_group(x: Tensor, k: Tensor) -> Tensor:
    """Add up the gradients (B, H, S, D) of the heads that share a head of ``k``."""
    added: Tensor = x.unflatten(1, (k.shape[1], -1)).sum(2).to(k.dtype)
    return added


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Return the scaled dot products in fp32, with minus infinity where ``seen`` is False."""
    products = q.float() @ _each_head(k, q).float().transpose(-1, -2) * q.shape[-1] ** -0.5
    scores: Tensor = products.masked_fill(~seen, -torch.inf)
    return scores


def _passed_on(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send a tensor to the next rank and return the tensor from the previous one."""
    n = group.size()
    rank = group.rank()
    received = torch.empty_like(x)
    to, source = (dist.get_global_rank(group, r % n) for r in (rank + 1, rank - 1))
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x.contiguous(), to, group),
            dist.P2POp(dist.irecv, received, source, group),
        ]
    )
    for work in works:
        work.wait()
    return received
