"""What a release costs, in the order in which a number comes about.

branch                     certified suprema, which renyi, cells and sum_moment search for
divergence, renyi, cells   constants of the interpolated mechanism: how far apart the laws of two inputs are
interpolated               a vector sent through it: Theorems 1 and 2, and the Gaussian pair that dominates small codes
dithered, skellam          MVU's own mechanism; Skellam noise, rounded within bounds or coordinate by coordinate
profile                    the vector mechanism: its dominating pair
sum_moment, aggregate      sums of codes behind masks
blanket, shuffle           one release among many in a secret order
subsampling, poisson       secret cohorts of clients; secret batches of samples
sensitivity                how far apart two neighbours' inputs are
conversion, gaussian, loss from divergences, a Gaussian pair or loss distributions to epsilon at a delta
cost, account, guarantee   what adds up, what a party has spent, what may be said of it
"""
