"""The cost of a release; modules in the order in which a number is computed.

branch                     certified suprema, used by renyi, cells and sum_moment
divergence, renyi, cells   constants of the interpolated mechanism: how far apart the laws of two inputs are
interpolated               vectors: Theorems 1 and 2, and the Gaussian pair that dominates small codes
dithered, skellam          MVU as first published; Skellam noise, rounded within bounds or coordinate by coordinate
profile                    the vector mechanism: its dominating pair
sum_moment, aggregate      sums of codes behind masks
blanket, shuffle           one release among many in a secret order
subsampling, poisson       secret cohorts of clients; secret batches of samples
sensitivity                how far apart two neighbours' inputs are
conversion, gaussian, loss from divergences, a Gaussian pair or loss distributions to epsilon at a delta
cost, account, guarantee   the sum of costs, the spending of one party, the statement about it
"""
