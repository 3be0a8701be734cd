# deepgp's deep Gaussian process for paper.py: full Bayes by elliptical slice sampling and
# Metropolis steps. Run by Rscript with a folder (X.csv, y.csv, X_test.csv, without headers), the
# number of layers and a seed; the moments at the test points are the JSON in the last line.
# As in the paper: 10000 iterations, of which 8000 are burnt and every second one is kept.

suppressPackageStartupMessages(library(deepgp))

ITERATIONS <- 10000
BURN_IN <- 8000
THINNING <- 2
NUGGET <- 1e-6

table_of <- function(folder, name) as.matrix(read.csv(file.path(folder, name), header = FALSE))

fitted_network <- function(X, y, depth) {
  fit <- list(`2` = fit_two_layer, `3` = fit_three_layer)[[as.character(depth)]]
  chain <- fit(X, y, D = ncol(X), nmcmc = ITERATIONS, verb = FALSE, true_g = NUGGET, cov = "exp2")
  trim(chain, BURN_IN, THINNING)
}

# JSON has no number that is not finite; null has no score, and is told.
numbers <- function(values) {
  paste0("[", paste(ifelse(is.finite(values), sprintf("%.17g", values), "null"), collapse = ", "), "]")
}

main <- function(folder, depth, seed) {
  set.seed(seed)
  X <- table_of(folder, "X.csv")
  y <- as.vector(table_of(folder, "y.csv"))
  centre <- mean(y)
  spread <- sqrt(mean((y - centre)^2))
  fit_s <- system.time(network <- fitted_network(X, (y - centre) / spread, depth))
  X_test <- table_of(folder, "X_test.csv")
  predict_s <- system.time(found <- predict(network, X_test, cores = 1))
  cpu <- function(spent) sprintf("%.17g", sum(spent[c("user.self", "sys.self")]))
  cat(paste0(
    '{"mean": ', numbers(centre + spread * found$mean),
    ', "std": ', numbers(spread * sqrt(found$s2)),
    ', "fit_cpu_s": ', cpu(fit_s), ', "predict_cpu_s": ', cpu(predict_s),
    ', "settings": "', ITERATIONS, " iterations, ", BURN_IN, " burnt, one kept of ", THINNING,
    '", "version": "deepgp ', packageVersion("deepgp"), '"}\n'
  ))
}

given <- commandArgs(trailingOnly = TRUE)
main(given[1], as.integer(given[2]), as.integer(given[3]))
