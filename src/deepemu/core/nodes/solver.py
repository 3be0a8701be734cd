"""The algebra of a node over its sites, behind one protocol."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from deepemu._types import Array
from deepemu.core.distributions import Gaussian
from deepemu.core.kernels.kernel import Kernel
from deepemu.core.nodes.linked import Link, Scheme
from deepemu.core.nodes.node import Derivatives, Fit, Joint, Node, Sites

InUnknowns = Callable[[Array, Array], Array]
"""Slopes (B, k, K) in K unknowns, given those (B, k, T, moving) in the inputs at rows (B, T)."""


class Solver(Protocol):
    """How densities, draws and predictions of one node are computed from its n sites.

    A solver has no arrays: it is frozen and hashable, a static part of the network. Its results for
    a node (a factor, columns at rest, a conditioned node, a link) are pytrees that only the solver
    itself and its schemes read, except `Link.alpha`. Rows with a count of zero are padding and must
    not change any result. All methods are for one node; callers batch them over nodes.

    A solver with ``n_near`` above zero conditions each group of ``n_group`` rows on so many rows of
    groups before it, which ``Sites.groups`` holds, and a prediction on ``n_predict`` rows near the
    test point. One that is ``certain``, for hidden layers only, predicts without variance from
    ``Sites.anchors``.
    """

    n_near: int = 0
    n_group: int = 0
    n_predict: int = 0
    certain: ClassVar[bool] = False

    def for_hidden(self) -> "Solver | None":
        """The solver of hidden layers, if it is another one."""
        return None

    # --- densities and draws ------------------------------------------------------------------

    def factor(self, node: Node, inputs: Array, sites: Sites, /) -> Any:
        """A factor of R over the rows of ``inputs`` (n, D), for `log_density` and `draw_prior`."""

    def log_density(self, factor: Any, node: Node, target: Array, sites: Sites, /) -> Array:
        """log N(y; 0, σ²R), including the replicates behind the site means y (n,)."""

    def draw_prior(self, factor: Any, node: Node, sites: Sites, normals: Array, /) -> Array:
        """A draw (n,) from N(0, σ²R) given standard normals (n,); zero in padded rows."""

    def fit(
        self, node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool, /
    ) -> Fit:
        """Log density at the node's parameters, with the scale profiled out where it is free."""

    def derivatives(
        self, node: Node, inputs: Array, target: Array, sites: Sites, free_scale: Array | bool, /
    ) -> Derivatives:
        """The fit with gradient and information in (log γ_1 … log γ_D, log η)."""

    def input_slopes(
        self, node: Node, inputs: Array, target: Array, sites: Sites, /
    ) -> tuple[Array, Array]:
        """Log density, and its gradient (n, D) in the inputs."""

    def information(
        self, node: Node, inputs: Array, n_moving: int, target: Array, sites: Sites,
        in_unknowns: InUnknowns, /,
    ) -> Array:  # fmt: skip
        """F = JᵀJ, with J the slopes of all residuals e/s and variances log(s²)/√2 of rows given
        others, in unknowns that the first columns of the inputs depend on. Solvers with guided
        moves have it."""
        raise TypeError("this solver has no guided moves")

    def root(self, node: Node, inputs: Array, sites: Sites, /) -> Any:
        """A root of the covariance σ²R of the node's values, as `roots` takes it, for guided moves
        of an imputed last layer."""
        raise TypeError("this solver has no guided moves of the last layer")

    # --- a sweep: some columns of the inputs move, the others rest ------------------------------

    def at_rest(self, node: Node, columns: Array, sites: Sites, /) -> Any:
        """The contribution of resting columns (n, D) of the inputs to R, nugget included.

        Here and in the next two methods ``node`` has the lengthscales of just these columns.
        """

    def more_at_rest(self, node: Node, columns: Array, resting: Any, /) -> Any:
        """The same with further columns."""

    def log_density_moving(
        self, node: Node, columns: Array, resting: Any, target: Array, sites: Sites, /
    ) -> Array:
        """The log density with columns that move joined to those at rest."""

    # --- prediction -----------------------------------------------------------------------------

    def condition(self, node: Node, inputs: Array, sites: Sites, /) -> Any:
        """The conditioned node, for predictions at known inputs with any target."""

    def alpha(self, node: Node, inputs: Array, target: Array, sites: Sites, /) -> Array:
        """α (n,) with posterior mean Σ_i k(·, w_i) α_i; zero in padded rows."""

    def mean(self, node: Node, alpha: Array, inputs: Array, at: Array, sites: Sites, /) -> Array:
        """Posterior mean (m,) at known inputs ``at`` (m, D)."""

    def with_near(self, conditioned: Any, near: Array, /) -> Any:
        """The conditioned node with rows near each of the test points to come, (m, n_predict)."""
        return conditioned

    def predict(
        self, node: Node, conditioned: Any, alpha: Array, inputs: Array, at: Array, /
    ) -> Gaussian:
        """Mean and variance (m,) at known inputs (m, D), nugget included; means (k, m) for α of
        several targets, (k, n)."""

    def joint(
        self, node: Node, conditioned: Any, alpha: Array, inputs: Array, at: Array, /
    ) -> Joint:
        """Mean (m,) and covariance (m, m) over rows, with the nugget on the diagonal."""

    def draw_posterior(
        self,
        node: Node,
        conditioned: Any,
        alpha: Array,
        inputs: Array,
        at: Array,
        normals: Array,
        /,
    ) -> Array:
        """A joint draw (m,) at known inputs, given standard normals (m,)."""

    def link(self, node: Node, inputs: Array, target: Array, sites: Sites, /) -> Link:
        """The link, for predictions at uncertain inputs."""

    def schemes(self, kernel: Kernel, n_uncertain: int, /) -> tuple[Scheme, ...]:
        """Schemes for moments at this number of uncertain columns, given a link: the cheapest
        first; the last one is always final."""

    def leave_one_out(self, node: Node, inputs: Array, target: Array, sites: Sites, /) -> Gaussian:
        """Prediction of one observation at each site with all of that site left out."""

    # --- more rows ------------------------------------------------------------------------------

    def alpha_of(self, conditioned: Any, target: Array, /) -> Array:
        """`alpha` of a node that is conditioned already."""

    def extend(
        self, n_new: int, first: Array, node: Node, conditioned: Any, inputs: Array, sites: Sites, /
    ) -> Any:
        """`condition` for all rows, given that for those before the ``first`` of n_new new ones.

        Inputs and sites are of all rows, and may have more padding than before. A solver that has
        nothing cheaper computes it anew.
        """
        return self.condition(node, inputs, sites)

    def extend_link(
        self,
        n_new: int,
        first: Array,
        node: Node,
        link: Link,
        inputs: Array,
        target: Array,
        sites: Sites,
        /,
    ) -> Link:
        """`link` for all rows, likewise."""
        return self.link(node, inputs, target, sites)
