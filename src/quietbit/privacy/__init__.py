"""The cost of a release; modules in the order in which a number is computed.

divergence, renyi           constants of the interpolated mechanism, by `branch` and bound: how far
apart two laws are interpolated, profile       vectors through the interpolated mechanism (Theorems
1 and 2, a Gaussian pair); the vector
                            mechanism's pair aggregate                   sums of codes behind masks
shuffle, subsampling        one release among many in a secret order; secret batches of samples
conversion, loss            from divergences, a Gaussian pair or loss distributions to epsilon at a
delta cost, account, guarantee    the sum of costs, the spending of one party, the statement about
it
"""
