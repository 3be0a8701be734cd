"""The exact solver: density, gradient, draws, prediction and leave-one-out by a Cholesky factor.

A node has a correlation matrix R = K + η diag(1/a) over n sites and covariance σ²R. Site i was
observed a_i times; ``Sites.counts`` holds the a_i. A count of zero marks a padded row: it stands
for an independent standard normal point that was observed as zero, so it adds nothing to the
density and leaves R⁻¹ block diagonal, whatever its inputs hold.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from deepemu._types import Array
from deepemu.core import linalg
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels import products
from deepemu.core.kernels.kernel import Parts, Two
from deepemu.core.nodes import linked
from deepemu.core.nodes.linked import Link
from deepemu.core.nodes.node import Derivatives, Fit, Joint, Node, Sites
from deepemu.core.nodes.solver import Solver

LOG_2PI = 1.8378770664093453
SMALLEST_SCALE = 1e-12
SMALLEST_JITTER = 1e-8
NO_CORRELATION = 1e3  # exp(-1000) is zero


def site_exponent(node: Node, sites: Sites) -> Array:
    """E (n, n) that turns the kernel's factor exp(-e) into R = factor exp(-e - E), or into K if the
    kernel is not one on the diagonal.

    Rows in use: E_ii = -log(1 + η/a_i), so that R_ii = 1 + η/a_i, and zero off the diagonal.
    Padded rows: R is the identity, K zero. It costs nothing where exponents are added up anyway.
    """
    used = sites.used
    beside = jnp.where(used[:, None] & used[None, :], 0.0, NO_CORRELATION)
    if not node.kernel.unit_variance:
        return beside
    on_diagonal = jnp.where(used, -jnp.log1p(noise(node, sites)), 0.0)
    is_diagonal = jnp.eye(used.shape[0], dtype=bool)
    return jnp.where(is_diagonal, on_diagonal[:, None], beside)


def noise(node: Node, sites: Sites) -> Array:
    """η/a_i, and η in padded rows."""
    return node.nugget / jnp.maximum(sites.counts, 1.0)


def beside_kernel(node: Node, sites: Sites) -> Array:
    """The diagonal matrix R − K: η/a_i in rows in use, one in padded ones."""
    return jnp.diag(jnp.where(sites.used, noise(node, sites), 1.0))


def completed(node: Node, every: Parts, sites: Sites) -> Array:
    """R from the parts of all columns, with those of `site_exponent`."""
    matrix = products.combine(*every)
    if node.kernel.unit_variance:
        return matrix
    return matrix + beside_kernel(node, sites)


def correlation(node: Node, inputs: Array, sites: Sites) -> Array:
    """R over the rows of ``inputs``."""
    return completed(node, at_rest(node, inputs, sites), sites)


def factor(node: Node, inputs: Array, sites: Sites) -> Array:
    """L with LLᵀ = R."""
    return linalg.cholesky(correlation(node, inputs, sites))


def log_density(lower: Array, node: Node, target: Array, sites: Sites) -> Array:
    """log N(y; 0, σ²R), including the replicates behind the site means y.

    −½ [ (yᵀR⁻¹y + S/η)/σ² + N log σ² + log|R| + (N − n) log η + Σ log a_i + N log 2π ]
    with S the replicates' squares, N the number of observations and n that of sites.
    """
    variable = log_variable(lower, quadratic_form(lower, target), node.scale)
    return variable + log_constant(node.scale, node.nugget, sites)


def quadratic_form(lower: Array, target: Array) -> Array:
    """yᵀR⁻¹y = |L⁻¹y|²."""
    return jnp.sum(linalg.solve_vector(lower, target) ** 2)


def log_variable(lower: Array, quadratic: Array, scale: Array) -> Array:
    """The part of the log density that depends on R: −½ [ yᵀR⁻¹y/σ² + log|R| ]."""
    return -0.5 * quadratic / scale - jnp.sum(jnp.log(jnp.diagonal(lower)))


def log_constant(scale: Array, nugget: Array, sites: Sites) -> Array:
    """The part of the log density that does not depend on R."""
    replicates = sites.n_observations - sites.n_sites
    counts = jnp.sum(jnp.log(jnp.maximum(sites.counts, 1.0)))
    volume = replicates * jnp.log(nugget) + counts
    spread = sites.squares / (nugget * scale)
    return -0.5 * (spread + sites.n_observations * (jnp.log(scale) + LOG_2PI) + volume)


def profiled_scale(quadratic: Array, nugget: Array, sites: Sites) -> Array:
    """σ̂² = (yᵀR⁻¹y + S/η) / N, the maximiser of the density in σ²."""
    total = quadratic + sites.squares / nugget
    return jnp.maximum(total / sites.n_observations, SMALLEST_SCALE)


def fit(node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool) -> Fit:
    """Log density at the node's parameters, with the scale profiled out where it is free."""
    return _fit(factor(node, inputs, sites), node, target, sites, free_scale)


def _fit(lower: Array, node: Node, target: Array, sites: Sites, free_scale: Array | bool) -> Fit:
    quadratic = quadratic_form(lower, target)
    scale = jnp.where(free_scale, profiled_scale(quadratic, node.nugget, sites), node.scale)
    constant = log_constant(scale, node.nugget, sites)
    return Fit(log_variable(lower, quadratic, scale) + constant, scale)


def derivatives(
    node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool
) -> Derivatives:
    """Log density, gradient and average information in θ = (log γ_1 … log γ_D, log η).

    With α = R⁻¹y, R_p = ∂R/∂θ_p and u_p = R_p α: ∂ log p/∂θ_p = ½ [αᵀu_p/σ² − tr(R⁻¹R_p)], and the
    average information (the mean of observed and expected information; Gilmour, Thompson and Cullis
    1995) is H_pq = ½ u_pᵀR⁻¹u_q/σ². It costs O(n²) per parameter where the expected information
    costs O(n³). With the scale free, σ² is σ̂² and H loses ½ (αᵀu_p)(αᵀu_q)/(Nσ⁴), the part that a
    change of scale explains. Replicates add S/(ησ²) to what the nugget explains, as rows of their
    own would.
    """
    matrix = correlation(node, inputs, sites)
    lower = linalg.cholesky(matrix)
    now = _fit(lower, node, target, sites, free_scale)
    precision = linalg.inverse(lower)
    alpha = precision @ target
    traces, images = _slopes(node, inputs, matrix - beside_kernel(node, sites), precision, alpha)
    of_nugget = jnp.where(sites.used, noise(node, sites), 0.0)
    traces = jnp.append(traces, of_nugget @ jnp.diagonal(precision))
    images = jnp.vstack([images, of_nugget * alpha])
    is_nugget = (jnp.arange(len(traces)) == len(traces) - 1).astype(traces.dtype)
    replicates = is_nugget * (sites.squares / (node.nugget * now.scale))
    explained = images @ alpha / now.scale + replicates
    free = is_nugget * (sites.n_observations - sites.n_sites)
    whitened = linalg.solve(lower, images.T)
    information = 0.5 * (whitened.T @ whitened / now.scale + jnp.diag(replicates))
    of_scale = 0.5 * jnp.outer(explained, explained) / sites.n_observations
    information -= jnp.where(free_scale, of_scale, 0.0)
    return Derivatives(now, 0.5 * (explained - traces - free), information)


def _slopes(
    node: Node, inputs: Array, kernel_matrix: Array, precision: Array, alpha: Array
) -> tuple[Array, Array]:
    """tr(R⁻¹R_p) and R_p α for each column p, R_p = K ∘ ∂ log k/∂ log γ_p.

    Both are zero for a column that the node does not read.
    """

    def of_column(column: tuple[Array, Array]) -> tuple[Array, Array]:
        values, inverse_lengthscale = column
        two = Two.of(values[:, None], values[None, :], inverse_lengthscale)
        slope = kernel_matrix * node.kernel.log_slope_at(two)
        return jnp.sum(precision * slope), slope @ alpha

    def of_read_column(column: tuple[Array, Array]) -> tuple[Array, Array]:
        nothing = lambda column: (jnp.zeros((), alpha.dtype), jnp.zeros_like(alpha))  # noqa: E731
        return jax.lax.cond(column[1] > 0.0, of_column, nothing, column)

    return jax.lax.map(of_read_column, (inputs.T, node.inverse_lengthscale))


def input_slopes(node: Node, inputs: Array, target: Array, sites: Sites) -> tuple[Array, Array]:
    """Log density, and its gradient (n, D) in the inputs.

    With G = ∂ log p/∂R = ½ (αα'/σ² − R⁻¹), row i pulls by 2 Σ_j G_ij K_ij ∂ log k(z_i, z_j)/∂z_i.
    """
    matrix = correlation(node, inputs, sites)
    lower = linalg.cholesky(matrix)
    precision = linalg.inverse(lower)
    alpha = precision @ target
    of_matrix = 0.5 * (alpha[:, None] * alpha[None] / node.scale - precision)
    pairs = 2.0 * of_matrix * (matrix - beside_kernel(node, sites))

    def of_column(column: tuple[Array, Array]) -> Array:
        values, inverse_lengthscale = column
        two = Two.of(values[:, None], values[None, :], inverse_lengthscale)
        return inverse_lengthscale * jnp.sum(pairs * node.kernel.slope_at(two), axis=1)

    slopes = jax.lax.map(of_column, (inputs.T, node.inverse_lengthscale)).T
    return log_density(lower, node, target, sites), slopes


def draw_prior(lower: Array, node: Node, sites: Sites, normals: Array) -> Array:
    """σ L ε, a draw from N(0, σ²R) given standard normals ε; zero in padded rows."""
    return jnp.where(sites.used, jnp.sqrt(node.scale) * (lower @ normals), 0.0)


def at_rest(node: Node, columns: Array, sites: Sites) -> Parts:
    """Factor and exponent of R over some columns, nugget and padding included."""
    scale, exponent = products.parts(node.kernel, columns, columns, node.inverse_lengthscale)
    return scale, exponent + site_exponent(node, sites)


def more_at_rest(node: Node, columns: Array, resting: Parts) -> Parts:
    """The kernel is a product over columns: factors multiply, exponents add up."""
    scale, exponent = products.parts(node.kernel, columns, columns, node.inverse_lengthscale)
    return scale * resting[0], exponent + resting[1]


def log_density_moving(
    node: Node, columns: Array, resting: Parts, target: Array, sites: Sites
) -> Array:
    """`log_density` with R from columns that move and those at rest."""
    lower = linalg.cholesky(completed(node, more_at_rest(node, columns, resting), sites))
    return log_density(lower, node, target, sites)


def condition(node: Node, inputs: Array, sites: Sites) -> Array:
    """L⁻¹, zero in padded rows."""
    return linalg.solve(factor(node, inputs, sites), jnp.diag(sites.used.astype(inputs.dtype)))


def alpha(node: Node, inputs: Array, target: Array, sites: Sites) -> Array:
    """α = R⁻¹y, zero in padded rows."""
    matrix = correlation(node, inputs, sites)
    return jnp.where(sites.used, linalg.solve_positive(matrix, target), 0.0)


def cross_correlation(node: Node, inputs: Array, at: Array) -> Array:
    """k(w_i, x_j) (n, m) of design points and test points."""
    return products.correlation_matrix(node.kernel, inputs, at, node.inverse_lengthscale)


def mean(node: Node, alpha: Array, inputs: Array, at: Array) -> Array:
    """μ = K*α at known inputs ``at`` (m, D)."""
    return cross_correlation(node, at, inputs) @ alpha


def predict(node: Node, inverse_lower: Array, alpha: Array, inputs: Array, at: Array) -> Gaussian:
    """Mean and variance (m,) of the output at known inputs (m, D), equation (1) of the paper.

    μ = rᵀα and σ₀² = σ² (k(x, x) + η − rᵀR⁻¹r), never below σ²η, which bounds the round-off of the
    sum; k(x, x) is one for a stationary kernel.
    For α of several targets, (k, n), the means are (k, m).
    """
    cross = cross_correlation(node, inputs, at)
    explained = jnp.sum((inverse_lower @ cross) ** 2, axis=0)
    prior = products.variance(node.kernel, at, node.inverse_lengthscale)
    relative = jnp.maximum(prior + node.nugget - explained, node.nugget)
    return Gaussian(alpha @ cross, node.scale * relative)


def joint(node: Node, inverse_lower: Array, alpha: Array, inputs: Array, at: Array) -> Joint:
    """Mean K*α and covariance σ² (K** − K*R⁻¹K*ᵀ + η I) at known inputs ``at`` (m, D)."""
    mean, relative = _joint(node, inverse_lower, alpha, inputs, at, node.nugget)
    return Joint(mean, node.scale * relative)


def draw_posterior(
    node: Node, inverse_lower: Array, alpha: Array, inputs: Array, at: Array, normals: Array
) -> Array:
    """A joint draw of the output at known inputs ``at`` (m, D), given standard normals (m,).

    μ + σ L ε with LLᵀ the covariance over σ². Its diagonal is kept above 1e-8, without which rows
    that nearly coincide have no Cholesky factor.
    """
    jitter = jnp.maximum(node.nugget, SMALLEST_JITTER)
    mean, relative = _joint(node, inverse_lower, alpha, inputs, at, jitter)
    return mean + jnp.sqrt(node.scale) * (linalg.cholesky(relative) @ normals)


def _joint(
    node: Node, inverse_lower: Array, alpha: Array, inputs: Array, at: Array, nugget: Array
) -> tuple[Array, Array]:
    """K*α and K** − K*R⁻¹K*ᵀ + η I."""
    cross, prior = cross_correlation(node, at, inputs), cross_correlation(node, at, at)
    explained = cross @ inverse_lower.T
    diagonal = nugget * jnp.eye(at.shape[0], dtype=at.dtype)
    return cross @ alpha, prior - explained @ explained.T + diagonal


def link(node: Node, inputs: Array, target: Array, sites: Sites) -> Link:
    """α and L⁻¹; padded rows have zeros."""
    root = condition(node, inputs, sites)
    return Link(alpha_of(root, target), linalg.in_halves(root))


def leave_one_out(node: Node, inputs: Array, target: Array, sites: Sites) -> Gaussian:
    """Prediction of one observation at each site with all observations of that site left out.

    μ_i = y_i − α_i/(R⁻¹)_ii and σ_i² = σ² (1/(R⁻¹)_ii + η − η/a_i); parameters are kept.
    """
    inverse = condition(node, inputs, sites)
    weights_of_mean = alpha_of(inverse, target)
    precision = jnp.where(sites.used, jnp.sum(inverse**2, axis=0), 1.0)
    extra = node.nugget * (1.0 - 1.0 / jnp.maximum(sites.counts, 1.0))
    return Gaussian(target - weights_of_mean / precision, node.scale * (1.0 / precision + extra))


def alpha_of(inverse_lower: Array, target: Array) -> Array:
    """α = L⁻ᵀL⁻¹y."""
    return inverse_lower.T @ (inverse_lower @ target)


def extend(
    n_new: int, first: Array, node: Node, inverse_lower: Array, inputs: Array, sites: Sites
) -> Array:
    """L⁻¹ = [[L₁⁻¹, 0], [−L₂⁻¹ A L₁⁻¹, L₂⁻¹]] with A = K₂₁L₁⁻ᵀ and L₂L₂ᵀ = R₂₂ − AAᵀ."""
    n_missing = inputs.shape[0] - inverse_lower.shape[0]
    old = jnp.pad(inverse_lower, ((0, n_missing), (0, n_missing)))
    cross, own = _new_rows(n_new, first, node, inputs, sites)
    a = (old @ cross).T
    lower = linalg.cholesky(own - a @ a.T)
    beside = -linalg.solve(lower, a @ old)
    corner = linalg.solve(lower, jnp.eye(n_new, dtype=inputs.dtype))
    whole = jax.lax.dynamic_update_slice(old, beside, (first, jnp.zeros_like(first)))
    return jax.lax.dynamic_update_slice(whole, corner, (first, first))


def extend_link(
    n_new: int,
    first: Array,
    node: Node,
    link: Link,
    inputs: Array,
    target: Array,
    sites: Sites,
) -> Link:
    """`extend` of L⁻¹, and α with it."""
    root = extend(n_new, first, node, linalg.whole(link.root), inputs, sites)
    return Link(alpha_of(root, target), linalg.in_halves(root))


def _new_rows(
    n_new: int, first: Array, node: Node, inputs: Array, sites: Sites
) -> tuple[Array, Array]:
    """K₁₂ (n, k), zero but for rows before the first new one, and R₂₂ (k, k)."""
    is_old = (jnp.arange(inputs.shape[0]) < first) & sites.used
    new = jax.lax.dynamic_slice_in_dim(inputs, first, n_new)
    counts = jax.lax.dynamic_slice_in_dim(sites.counts, first, n_new)
    cross = cross_correlation(node, inputs, new)
    own = correlation(node, new, dataclasses.replace(sites, counts=counts))
    return jnp.where(is_old[:, None], cross, 0.0), own


@dataclass(frozen=True)
class Dense(Solver):
    """All n × n matrices in full: exact, O(n³)."""

    factor = staticmethod(factor)
    log_density = staticmethod(log_density)
    draw_prior = staticmethod(draw_prior)
    fit = staticmethod(fit)
    derivatives = staticmethod(derivatives)
    input_slopes = staticmethod(input_slopes)
    at_rest = staticmethod(at_rest)
    more_at_rest = staticmethod(more_at_rest)
    log_density_moving = staticmethod(log_density_moving)
    condition = staticmethod(condition)
    alpha = staticmethod(alpha)
    predict = staticmethod(predict)
    joint = staticmethod(joint)
    draw_posterior = staticmethod(draw_posterior)
    link = staticmethod(link)
    schemes = staticmethod(linked.schemes)
    leave_one_out = staticmethod(leave_one_out)
    alpha_of = staticmethod(alpha_of)

    def mean(self, node: Node, alpha: Array, inputs: Array, at: Array, sites: Sites) -> Array:
        return mean(node, alpha, inputs, at)

    extend = staticmethod(extend)
    extend_link = staticmethod(extend_link)
