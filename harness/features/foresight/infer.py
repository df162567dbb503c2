"""Infer the unknowns from measured points, and predict other points from them.

The posterior is Laplace's approximation: the mode, and the curvature there. A few points never
determine all unknowns. Priors constrain the others, and their spread widens the interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares

from harness.features.foresight import discrepancy, priors, terms
from harness.features.foresight.discrepancy import WALK, Walk
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.priors import PRIORS, Belief
from harness.features.foresight.shapes import Model, Shape
from harness.features.foresight.terms import ShapeFacts, Unknown

Array = NDArray[np.float64]
NUM_DRAWS = 400


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The posterior distribution of the unknowns after calibration.

    ``mode`` has shape (unknowns,). ``root`` has shape (unknowns, unknowns), and ``root @ root.T``
    is the covariance. ``shapes`` and ``log_s`` are the calibrated points with their ln(step time),
    and ``noise`` is the independent variance of each.
    """

    fabric: Fabric
    models: tuple[Model, ...]
    shapes: tuple[Shape, ...]
    log_s: Array
    noise: Array
    mode: Array
    root: Array
    hop: float
    walk: Walk

    @property
    def base_ranks(self) -> int:
        return min(shape.ranks for shape in self.shapes)

    def facts(self, shapes: Sequence[Shape], fabric: Fabric | None = None) -> ShapeFacts:
        """Return the facts from which terms are computed, for shapes of calibrated models.

        ``fabric`` replaces the fabric of the calibrated points.
        """
        groups = [self.models.index(shape.model) for shape in shapes]
        return terms.facts(shapes, groups, fabric or self.fabric, self.base_ranks, self.hop)

    def draws(self, num: int = NUM_DRAWS, seed: int = 7) -> Array:
        """Return the mode, then ``num`` draws: an array of shape (1 + num, unknowns)."""
        normal = np.random.default_rng(seed).standard_normal((num, len(self.mode)))
        return np.vstack([self.mode, self.mode + normal @ self.root.T])


def calibrate(  # noqa: PLR0913 (what is known before, and what was measured)
    fabric: Fabric,
    shapes: Sequence[Shape],
    step_s: Sequence[float],
    models: Sequence[Model],
    *,
    beliefs: Mapping[Unknown, Belief] = PRIORS,
    hop: float = terms.HOP,
    walk: Walk = WALK,
    log_sd: Sequence[float] = (),
) -> Posterior:
    """Return the posterior, given ``step_s`` seconds per step at ``shapes``.

    ``models`` must include the models of all targets. ``log_sd`` is the standard deviation of each
    ln(step time), in addition to the difference between two runs of the same point.
    """
    log_s = np.log(np.asarray(step_s, float))
    noise = walk.replicate**2 + np.square(log_sd or np.zeros(len(log_s)))
    groups = [list(models).index(shape.model) for shape in shapes]
    given = terms.facts(shapes, groups, fabric, min(shape.ranks for shape in shapes), hop)
    sized = all(model.params is not None for model in models)
    mean, spread = priors.vectors(beliefs, len(models), sized)
    mean[0] += _rate(given, mean, log_s)
    spread_of_all = discrepancy.covariance(shapes, shapes, walk) + np.diag(noise)
    whiten = np.linalg.inv(np.linalg.cholesky(spread_of_all))

    def miss(x: Array) -> Array:
        off = log_s - np.log(terms.step_s(given, x[None, :])[0])
        return np.concatenate([whiten @ off, (x - mean) / spread])

    def slope(x: Array) -> Array:
        """Return the Jacobian by finite differences, with one call for all unknowns."""
        step = 1e-5
        around = np.log(terms.step_s(given, np.vstack([x, x + step * np.eye(len(x))])))
        white = whiten @ (around[0] - around[1:]).T / step
        return np.vstack([white, np.diag(1 / spread)])

    optimum = least_squares(
        miss, mean, slope, x_scale=spread, method="lm", ftol=1e-6, xtol=1e-6, gtol=1e-6
    )
    curve = optimum.jac.T @ optimum.jac
    root = np.linalg.cholesky(np.linalg.inv(curve))
    return Posterior(
        fabric=fabric,
        models=tuple(models),
        shapes=tuple(shapes),
        log_s=log_s,
        noise=noise,
        mode=optimum.x,
        root=root,
        hop=hop,
        walk=walk,
    )


def _rate(given: ShapeFacts, mean: Array, log_s: Array) -> float:
    """Return the correction of the prior mean of ln(rate) that matches the first point.

    The rate is almost unknown beforehand. The other terms are taken from their priors, but at least
    half of the step is assumed to be compute.
    """
    parts = {
        term: float(value[0, 0]) for term, value in terms.seconds(given, mean[None, :]).items()
    }
    compute_s = parts.pop(terms.ForeseenTerm.COMPUTE)
    measured_s = float(np.exp(log_s[0]))
    return float(np.log(compute_s / max(measured_s - sum(parts.values()), measured_s / 2)))


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """The predicted ln(seconds per step) of several shapes: median, standard deviation and draws.

    ``draws`` has shape (draws, shapes) and includes the discrepancy.
    """

    middle: Array
    sd: Array
    draws: Array


def foresee(
    known: Posterior, shapes: Sequence[Shape], *, num: int = NUM_DRAWS, seed: int = 7
) -> Foreseen:
    """Predict the step times of other shapes, corrected by the residuals of calibrated points
    nearby.
    """
    draws = known.draws(num, seed)
    at = np.log(terms.step_s(known.facts(shapes), draws))
    off = known.log_s - np.log(terms.step_s(known.facts(known.shapes), draws))
    walk = known.walk
    across = discrepancy.covariance(shapes, known.shapes, walk)
    near = discrepancy.covariance(known.shapes, known.shapes, walk)
    factor = cho_factor(near + np.diag(known.noise))
    weights = cho_solve(factor, across.T).T
    left = discrepancy.covariance(shapes, shapes, walk) - weights @ across.T
    left += walk.replicate**2 * np.eye(len(shapes))
    all_draws = at + off @ weights.T
    noise = np.random.default_rng(seed + 1).standard_normal((len(draws) - 1, len(shapes)))
    root = np.linalg.cholesky(left + 1e-12 * np.eye(len(shapes)))
    spread = all_draws[1:] + noise @ root.T
    return Foreseen(middle=np.median(spread, axis=0), sd=spread.std(axis=0), draws=spread)
