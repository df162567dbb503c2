"""From measured points to a posterior of the unknowns, and from that to other points.

The posterior is Laplace's: the mode, and the curvature there. Few points never pin all unknowns
down; priors hold the others, and their spread stays in the interval.
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
    """The unknowns after calibration.

    ``mode`` (unknowns) and ``root`` (unknowns, unknowns), whose product with its transpose is the
    covariance; ``shapes`` and ``log_s`` are what was calibrated on, and ``noise`` the variance of
    each of these for itself.
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
        """Facts of shapes of models that are known here, on this or another fabric."""
        groups = [self.models.index(shape.model) for shape in shapes]
        return terms.facts(shapes, groups, fabric or self.fabric, self.base_ranks, self.hop)

    def draws(self, num: int = NUM_DRAWS, seed: int = 7) -> Array:
        """The mode first, then ``num`` draws: (1 + num, unknowns)."""
        normal = np.random.default_rng(seed).standard_normal((num, len(self.mode)))
        return np.vstack([self.mode, self.mode + normal @ self.root.T])


def calibrate(  # noqa: PLR0913  (what is known before, and what was measured)
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
    """The posterior given ``step_s`` seconds at ``shapes``; ``models``: also those of targets.

    ``log_sd``: of the ln of each of these, beyond what two runs of one point differ by anyhow.
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
        """By differences, all unknowns in one call."""
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
    """By how much the ln of the rate is off where the first point is met.

    It is all but unknown beforehand. What a step takes besides compute is taken as believed, but
    half of a step computes at least.
    """
    parts = {
        term: float(value[0, 0]) for term, value in terms.seconds(given, mean[None, :]).items()
    }
    compute_s = parts.pop(terms.ForeseenTerm.COMPUTE)
    measured_s = float(np.exp(log_s[0]))
    return float(np.log(compute_s / max(measured_s - sum(parts.values()), measured_s / 2)))


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """ln of seconds a step at some shapes: the middle, its standard deviation, and draws.

    ``draws`` (draws, shapes) have the discrepancy in them.
    """

    middle: Array
    sd: Array
    draws: Array


def foresee(
    known: Posterior, shapes: Sequence[Shape], *, num: int = NUM_DRAWS, seed: int = 7
) -> Foreseen:
    """The step times of other shapes, corrected by what calibrated neighbours were off."""
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
