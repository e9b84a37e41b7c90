"""The cost of a release; modules in the order in which a number is computed.

rounding, branch, orders      directed rounding; branch and bound; bounds between Rényi orders
divergence, fisher,           constants of the interpolated mechanism: how far apart two laws are
renyi, renyi_cells
interpolated, profile         vectors through the interpolated and the vector mechanism
bit_sums, bit_pairs,          sums of codes behind masks
aggregate
subsampling                   secret batches of samples
conversion, convolution,      from divergences, a Gaussian pair or losses to epsilon at a delta
loss
cost, account, guarantee      the sum of costs, the spending of one client, the statement about it
"""
